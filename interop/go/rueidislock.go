package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// useRueidislock acquires and releases with a script each, hears of releases by invalidation
// messages of the server, and extends its holds until they are released.
func useRueidislock(addresses []string, lease time.Duration) (library, error) {
	locks, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: addresses},
		KeyValidity:  lease,
		// Like all others that extend; its default is half of the lease.
		ExtendInterval: lease / 3,
		// One server, and so one key. This and the next option follow its documentation.
		KeyMajority:    1,
		NoLoopTracking: true,
		// With one key there is no next one to try: its default of 20 ms would only give up
		// attempts of a busy process.
		TryNextAfter: lease,
	})
	if err != nil {
		return nil, err
	}
	return func(name string) lock {
		return func(ctx context.Context) (release, error) {
			_, cancel, err := locks.WithContext(ctx, name)
			return func() error {
				// Returns when the key is gone.
				cancel()
				return nil
			}, err
		}
	}, nil
}
