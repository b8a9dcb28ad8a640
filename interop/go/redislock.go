package main

import (
	"context"
	"errors"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

// retry is the interval in its documentation.
const retry = 100 * time.Millisecond

// patience is how long Obtain tries. Without a deadline it would give up after a lease.
const patience = time.Hour

// useRedislock acquires and releases with a script each. It refreshes nothing by itself.
func useRedislock(client redis.UniversalClient, lease time.Duration) library {
	locks := redislock.New(client)
	options := redislock.Options{RetryStrategy: redislock.LinearBackoff(retry)}
	return func(name string) lock {
		return func(ctx context.Context) (release, error) {
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			hold, err := locks.Obtain(ctx, name, lease, &options)
			return giveBack(hold), err
		}
	}
}

func giveBack(hold *redislock.Lock) release {
	return func() error {
		if hold == nil {
			return errors.New("nothing is held")
		}
		return hold.Release(context.Background())
	}
}
