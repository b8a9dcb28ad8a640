package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// library makes a lock for a name, for one task. All tasks share its client.
type library func(name string) lock

// lock waits until the lock is acquired, or the context is cancelled.
type lock func(context.Context) (release, error)

// release returns when the server has released the lock.
type release func() error

// connect makes the one client of this process.
func connect(config config) (library, error) {
	addresses, lease := addresses(config.URL), time.Duration(config.Lease)
	switch config.Subject {
	case "Redsync":
		return useRedsync(connectGoRedis(addresses), lease), nil
	case "RedsyncFast":
		return useRedsync(connectGoRedis(addresses), lease, fastRetry), nil
	case "Rueidislock":
		return useRueidislock(addresses, lease)
	case "Redislock":
		return useRedislock(connectGoRedis(addresses), lease), nil
	default:
		return nil, fmt.Errorf("there is no library %s here", config.Subject)
	}
}

// addresses returns those in redis://host:port, or in redis+cluster://host:port,host:port.
func addresses(url string) []string {
	_, hosts, _ := strings.Cut(url, "://")
	return strings.Split(strings.TrimSuffix(hosts, "/"), ",")
}

// connectGoRedis makes a client with the defaults of go-redis, of a cluster if there are several
// addresses.
func connectGoRedis(addresses []string) redis.UniversalClient {
	return redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addresses})
}
