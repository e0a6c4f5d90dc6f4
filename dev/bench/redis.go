package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/hasplock/hasp/internal/backends"
)

// deleteOwn deletes a key that is found to be one's own: the release of every lock on Redis.
const deleteOwn = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// setAndScripts are what clients send that lock by a plain SET.
const setAndScripts = "set|eval|evalsha"

var redisStore = store{
	name: "redis", quick: true,
	unit: "commands",
	start: func(p *backends.Program) endpoint {
		s := backends.StartRedis(p, backends.RedisOptions{Config: []string{"maxclients 20000"}})
		return endpoint{URL: s.URL() + "?connect_timeout=1m", Addrs: []string{s.Addr}, Served: startServe(p, s.URL())}
	},
	contestants: func(e endpoint) []contestant {
		addr := e.Addrs[0]
		setnx := haspOn("hasp setnx", e.URL+"&strategy=setnx")
		setnx.only = throughout
		served := haspOn("hasp through hasp serve", e.Served)
		served.only = essentials
		return []contestant{
			{name: "floor (go-redis)", sends: setAndScripts, role: floor, told: true, open: goRedisFloor(addr)},
			{name: "floor (rueidis)", only: essentials, sends: setAndScripts, role: floor, told: true, open: rueidisFloor(addr)},
			haspOn("hasp queue", e.URL),
			setnx,
			served,
			{name: "redsync", sends: setAndScripts, role: peer, open: redsyncOn(addr)},
			{name: "bsm/redislock", role: peer, open: redislockOn(addr)},
		}
	},
	counter: func(e endpoint, c contestant) (counter, error) { return redisCounter(e.Addrs, c.sends) },
}

var redlockStore = store{
	name: "redlock",
	unit: "commands",
	start: func(p *backends.Program) (e endpoint) {
		e.URL = "redlock://"
		for i, s := range backends.StartRedisNodes(p, 5, backends.RedisOptions{Config: []string{"maxclients 20000"}}) {
			if i > 0 {
				e.URL += ","
			}
			e.URL += s.Addr
			e.Addrs = append(e.Addrs, s.Addr)
		}
		return e
	},
	contestants: func(e endpoint) []contestant {
		return []contestant{
			{name: "floor (go-redis)", sends: setAndScripts, role: floor, told: true, open: goRedisFloor(e.Addrs...)},
			{name: "floor (rueidis)", only: essentials, sends: setAndScripts, role: floor, told: true, open: rueidisFloor(e.Addrs...)},
			haspOn("hasp", e.URL),
			{name: "redsync", sends: setAndScripts, role: peer, open: redsyncOn(e.Addrs...)},
		}
	},
	counter: func(e endpoint, c contestant) (counter, error) { return redisCounter(e.Addrs, c.sends) },
}

// goRedisFloor is the floor on one server, or on several at once.
func goRedisFloor(addrs ...string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		var all servers[*redis.Client]
		for _, addr := range addrs {
			all = append(all, redis.NewClient(&redis.Options{Addr: addr}))
		}
		script := redis.NewScript(deleteOwn)
		return all.client(func(ctx context.Context, c *redis.Client, name string) error {
			ok, err := c.SetNX(ctx, name, "me", ttl).Result()
			if err == nil && !ok {
				err = fmt.Errorf("%q is not free", name)
			}
			return err
		}, func(ctx context.Context, c *redis.Client, name string) error {
			return script.Run(ctx, c, []string{name}, "me").Err()
		}, func(c *redis.Client) { c.Close() }), nil
	}
}

// rueidisFloor is the same with the client library that hasp uses.
func rueidisFloor(addrs ...string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		var all servers[rueidis.Client]
		for _, addr := range addrs {
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
			if err != nil {
				return client{}, err
			}
			all = append(all, c)
		}
		script := rueidis.NewLuaScript(deleteOwn)
		return all.client(func(ctx context.Context, c rueidis.Client, name string) error {
			return c.Do(ctx, c.B().Set().Key(name).Value("me").Nx().Px(ttl).Build()).Error()
		}, func(ctx context.Context, c rueidis.Client, name string) error {
			return script.Exec(ctx, c, []string{name}, []string{"me"}).Error()
		}, rueidis.Client.Close), nil
	}
}

// servers are what a floor asks, all at once.
type servers[C any] []C

func (all servers[C]) client(lock, unlock func(context.Context, C, string) error, done func(C)) client {
	return client{
		lock: func(ctx context.Context, name string) (func() error, error) {
			err := all.each(func(c C) error { return lock(ctx, c, name) })
			return func() error {
				return all.each(func(c C) error { return unlock(context.WithoutCancel(ctx), c, name) })
			}, err
		},
		close: func() {
			for _, c := range all {
				done(c)
			}
		},
	}
}

// each calls do for all at once, and in place for a single one.
func (all servers[C]) each(do func(C) error) error {
	if len(all) == 1 {
		return do(all[0])
	}
	errs := make(chan error, len(all))
	for _, c := range all {
		go func() { errs <- do(c) }()
	}
	var first error
	for range all {
		if err := <-errs; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func redsyncOn(addrs ...string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		var pools []redsyncredis.Pool
		var all []*redis.Client
		for _, addr := range addrs {
			c := redis.NewClient(&redis.Options{Addr: addr})
			all = append(all, c)
			pools = append(pools, goredis.NewPool(c))
		}
		rs := redsync.New(pools...)
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				// By default it gives up after 32 tries; a caller that wants to wait asks for more.
				m := rs.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
				if err := m.LockContext(ctx); err != nil {
					return nil, err
				}
				return func() error {
					_, err := m.UnlockContext(context.WithoutCancel(ctx))
					return err
				}, nil
			},
			close: func() {
				for _, c := range all {
					c.Close()
				}
			},
		}, nil
	}
}

func redislockOn(addr string) func(context.Context) (client, error) {
	return func(context.Context) (client, error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		locker := bsm.New(c)
		retry := &bsm.Options{RetryStrategy: bsm.LinearBackoff(100 * time.Millisecond)} // its README's
		return client{
			lock: func(ctx context.Context, name string) (func() error, error) {
				// A deadline ends its waiting, and without one the lock's own TTL would.
				waiting, cancel := context.WithTimeout(ctx, time.Hour)
				l, err := locker.Obtain(waiting, name, ttl, retry)
				cancel()
				if err != nil {
					return nil, err
				}
				return func() error { return l.Release(context.WithoutCancel(ctx)) }, nil
			},
			close: func() { c.Close() },
		}, nil
	}
}

// redisCounter counts the commands that a contestant sends, by name: the server counts those
// within scripts, too, and nothing in INFO tells them apart.
func redisCounter(addrs []string, sends string) (counter, error) {
	if sends == "" {
		sends = "eval|evalsha"
	}
	calls, err := regexp.Compile(`cmdstat_(?:` + sends + `):calls=(\d+)`)
	if err != nil {
		return nil, err
	}
	var all []*redis.Client
	for _, addr := range addrs {
		all = append(all, redis.NewClient(&redis.Options{Addr: addr}))
	}
	return func() (sum int64, err error) {
		for _, c := range all {
			info, err := c.Info(context.Background(), "commandstats").Result()
			if err != nil {
				return 0, err
			}
			for _, m := range calls.FindAllStringSubmatch(info, -1) {
				n, err := strconv.ParseInt(m[1], 10, 64)
				if err != nil {
					return 0, err
				}
				sum += n
			}
		}
		return sum, nil
	}, nil
}
