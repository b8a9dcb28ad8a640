package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// atATime is the number of concurrent acquisitions when many names are to be held.
const atATime = 64

// unheard is the time after which a waiter is called again. A waiter of rueidislock can miss its
// wake-up (see docs/PERFORMANCE.md); waiters that poll have the lock long before.
const unheard = 5 * time.Second

// session is the state of a worker between orders. Nothing keeps the holds of Hold: they last for
// as long as the process.
type session struct {
	library library
	// The hold between Acquire and Release.
	held release
	// The grants that Await waits for, in the order of the names.
	grants []chan grant
}

type grant struct {
	at  uint64
	err error
}

// answer carries out an order.
func (s *session) answer(line []byte) any {
	answer, err := s.carryOut(line)
	if err != nil {
		return failed(err)
	}
	return answer
}

func (s *session) carryOut(line []byte) (any, error) {
	var order order
	if err := json.Unmarshal(line, &order); err != nil {
		return nil, err
	}
	switch order.kind {
	case "Load":
		return with(order, func(o loadOrder) (any, error) {
			return answer{"Load": runLoad(s.library, o)}, nil
		})
	case "Acquire":
		return with(order, s.acquire)
	case "Release":
		return s.release()
	case "Hold":
		return with(order, s.hold)
	case "Wait":
		return with(order, s.wait)
	case "Await":
		return with(order, s.await)
	case "Grants":
		return s.allGrants()
	default:
		return nil, fmt.Errorf("%s is not measured of libraries for Go", order.kind)
	}
}

// with carries out an order with its arguments.
func with[T any](order order, carryOut func(T) (any, error)) (any, error) {
	var arguments T
	if err := json.Unmarshal(order.arguments, &arguments); err != nil {
		return nil, err
	}
	return carryOut(arguments)
}

func (s *session) acquire(name string) (any, error) {
	held, err := insist(s.library(name))
	had := monotonic()
	if err != nil {
		return nil, err
	}
	s.held = held
	return answer{"Stamp": had}, nil
}

func (s *session) release() (any, error) {
	if s.held == nil {
		return nil, errors.New("nothing is held")
	}
	held := s.held
	s.held = nil
	begun := monotonic()
	return answer{"Stamp": begun}, held()
}

func (s *session) hold(o rangeOrder) (any, error) {
	var holders sync.WaitGroup
	numbers, failures := make(chan int), make(chan error, o.Count)
	for range atATime {
		holders.Go(func() {
			for number := range numbers {
				if _, err := insist(s.library(numbered(o.Prefix, number))); err != nil {
					failures <- err
				}
			}
		})
	}
	for number := o.From; number < o.From+o.Count; number++ {
		numbers <- number
	}
	close(numbers)
	holders.Wait()
	close(failures)
	return done, <-failures
}

func (s *session) wait(o rangeOrder) (any, error) {
	for number := range o.Count {
		lock := s.library(numbered(o.Prefix, number%o.Names))
		go func() {
			if release, err := lock(context.Background()); err == nil {
				_ = release()
			}
		}()
	}
	return done, nil
}

func (s *session) await(o rangeOrder) (any, error) {
	for number := range o.Count {
		lock, granted := s.library(numbered(o.Prefix, number)), make(chan grant, 1)
		s.grants = append(s.grants, granted)
		go func() {
			release, err := insist(lock)
			had := uint64(time.Now().UnixNano())
			if err == nil {
				err = release()
			}
			granted <- grant{had, err}
		}()
	}
	return done, nil
}

// allGrants returns when those locks were acquired, by the wall clock.
func (s *session) allGrants() (any, error) {
	stamps := []uint64{}
	for _, granted := range s.grants {
		grant := <-granted
		if grant.err != nil {
			return nil, grant.err
		}
		stamps = append(stamps, grant.at)
	}
	s.grants = nil
	return answer{"Stamps": stamps}, nil
}

// insist calls a lock again when it was not acquired in time.
func insist(lock lock) (release, error) {
	for {
		ctx, cancel := context.WithCancel(context.Background())
		late := time.AfterFunc(unheard, cancel)
		release, err := lock(ctx)
		if late.Stop() {
			return release, err
		}
		if err == nil {
			// It was acquired as the context was cancelled, which may have ended the hold.
			_ = release()
		}
	}
}

// monotonic is the clock that all processes of the machine share.
func monotonic() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return uint64(now.Nano())
}
