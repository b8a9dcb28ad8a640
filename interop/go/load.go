package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// The phases of a load.
const (
	warmingUp int32 = iota
	measuring
	ending
)

// respite is how long a task pauses after an operation that failed.
const respite = time.Millisecond

// grace is how long tasks may take to end. A task that still waits after that has failed.
const grace = 5 * time.Second

// shared is the state that the tasks of a load share.
type shared struct {
	phase atomic.Int32
	// The last holder, if all tasks have the same lock.
	last atomic.Int64
}

// pairs holds the results of one task.
type pairs struct {
	measured, all, handOvers, failures uint64
	waits                              []time.Duration
	reason                             error
}

// runLoad makes one goroutine per lock acquire and release it repeatedly.
func runLoad(library library, o loadOrder) load {
	var shared shared
	shared.last.Store(-1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	finished := make([]chan pairs, o.Tasks)
	for task := range finished {
		lock, results := library(o.Names.of(task)), make(chan pairs, 1)
		finished[task] = results
		go func() { results <- repeat(ctx, lock, int64(task), &shared) }()
	}
	time.Sleep(time.Duration(o.Span.WarmUp))
	begun := time.Now()
	shared.phase.Store(measuring)
	time.Sleep(time.Duration(o.Span.Measured))
	shared.phase.Store(ending)
	time.AfterFunc(grace, cancel)
	return sum(duration(time.Since(begun)), finished)
}

func sum(took duration, finished []chan pairs) load {
	load := load{Took: took, Pairs: []uint64{}, Waits: [][2]uint64{}}
	waits := map[uint64]uint64{}
	for _, results := range finished {
		task := <-results
		load.Pairs = append(load.Pairs, task.measured)
		load.AllPairs += task.all
		load.HandOvers += task.handOvers
		load.Failures += task.failures
		if load.Reason == nil && task.reason != nil {
			reason := task.reason.Error()
			load.Reason = &reason
		}
		for _, wait := range task.waits {
			waits[threeDigits(uint64(wait))]++
		}
	}
	for wait, count := range waits {
		load.Waits = append(load.Waits, [2]uint64{wait, count})
	}
	return load
}

func repeat(ctx context.Context, lock lock, task int64, shared *shared) pairs {
	var pairs pairs
	for {
		asked := time.Now()
		release, err := lock(ctx)
		waited := time.Since(asked)
		if ctx.Err() != nil && err != nil {
			err = fmt.Errorf("it still waited %v after the end of the round", grace)
		}
		handedOver := err == nil && shared.last.Swap(task) != task
		if err == nil {
			err = release()
		}
		phase := shared.phase.Load()
		switch {
		case err != nil:
			pairs.failures++
			if pairs.reason == nil {
				pairs.reason = err
			}
			time.Sleep(respite)
		case phase == measuring:
			pairs.measured++
			if handedOver {
				pairs.handOvers++
			}
			pairs.waits = append(pairs.waits, waited)
			fallthrough
		default:
			pairs.all++
		}
		if phase == ending {
			return pairs
		}
	}
}

func threeDigits(time uint64) uint64 {
	unit := uint64(1)
	for time/unit >= 1000 {
		unit *= 10
	}
	return time / unit * unit
}
