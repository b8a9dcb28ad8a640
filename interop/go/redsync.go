package main

import (
	"context"
	"errors"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// fastRetry retries after 5 ms, instead of 50 to 250.
var fastRetry = redsync.WithRetryDelay(5 * time.Millisecond)

// useRedsync acquires with SET NX PX and releases with a script. It extends nothing by itself.
func useRedsync(
	client redis.UniversalClient, lease time.Duration, options ...redsync.Option,
) library {
	locks := redsync.New(goredis.NewPool(client))
	options = append(options, redsync.WithExpiry(lease))
	return func(name string) lock {
		mutex := locks.NewMutex(name, options...)
		return func(ctx context.Context) (release, error) {
			return unlock(mutex), lockUntilHad(ctx, mutex)
		}
	}
}

// lockUntilHad calls Lock again when it has given up, as its documentation says: after 32 attempts.
func lockUntilHad(ctx context.Context, mutex *redsync.Mutex) error {
	for {
		err := mutex.LockContext(ctx)
		var taken *redsync.ErrTaken
		if !errors.As(err, &taken) {
			return err
		}
	}
}

func unlock(mutex *redsync.Mutex) release {
	return func() error {
		released, err := mutex.Unlock()
		if err == nil && !released {
			err = errors.New("the lock was not held")
		}
		return err
	}
}
