package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	bsm "github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncgo "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// peer is another library that locks the same keys as strategy=setnx.
type peer struct {
	name  string
	query string // what a hasp URL needs beside strategy=setnx

	// lock waits for the lock, or with patience 0 tries once; errBusy says that it is taken.
	lock func(ctx context.Context, name string, ttl, patience time.Duration) (unlock func() error, err error)
}

var errBusy = errors.New("taken")

// peers makes a peer for each library.
func peers(t *testing.T, server *backends.Redis) []peer {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	t.Cleanup(func() { client.Close() })
	return []peer{
		{name: "redsync", lock: redsyncLock(redsync.New(redsyncgo.NewPool(client)))},
		{name: "redislock", lock: bsmLock(bsm.New(client))},
		{name: "rueidislock", query: "&prefix=rueidislock:0:", lock: rueidislockLock(t, server)},
	}
}

func redsyncLock(rs *redsync.Redsync) func(context.Context, string, time.Duration, time.Duration) (func() error, error) {
	const pause = 5 * time.Millisecond
	return func(ctx context.Context, name string, ttl, patience time.Duration) (func() error, error) {
		m := rs.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1+int(patience/pause)), redsync.WithRetryDelay(pause))
		if err := m.LockContext(ctx); errors.As(err, new(*redsync.ErrTaken)) || errors.Is(err, redsync.ErrFailed) {
			return nil, errBusy
		} else if err != nil {
			return nil, err
		}
		return func() error {
			if ok, err := m.UnlockContext(ctx); !ok {
				return fmt.Errorf("redsync had lost it: %w", err)
			}
			return nil
		}, nil
	}
}

func bsmLock(c *bsm.Client) func(context.Context, string, time.Duration, time.Duration) (func() error, error) {
	return func(ctx context.Context, name string, ttl, patience time.Duration) (func() error, error) {
		ctx, cancel := context.WithTimeout(ctx, patience+ttl)
		defer cancel()
		o := &bsm.Options{RetryStrategy: bsm.NoRetry()}
		if patience > 0 {
			o.RetryStrategy = bsm.LinearBackoff(5 * time.Millisecond)
		}
		l, err := c.Obtain(ctx, name, ttl, o)
		if errors.Is(err, bsm.ErrNotObtained) {
			return nil, errBusy
		}
		if err != nil {
			return nil, err
		}
		return func() error { return l.Release(context.WithoutCancel(ctx)) }, nil
	}
}

// rueidislockLock sends the requests of rueidislock with a majority of one. The Go proxy does not
// have its module, so this function plays its side: SET NX PXAT, a GET after which the server
// tracks the key for this client, and a new attempt when the server says that it has changed.
func rueidislockLock(t *testing.T, server *backends.Redis) func(context.Context, string, time.Duration, time.Duration) (func() error, error) {
	t.Helper()
	changed := make(chan struct{}, 1)
	c, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{server.Addr}, ClientTrackingOptions: []string{"OPTOUT"},
		OnInvalidations: func([]rueidis.RedisMessage) {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	del := rueidis.NewLuaScript(`if redis.call("GET",KEYS[1]) == ARGV[1] then return redis.call("DEL",KEYS[1]) else return 0 end`)
	return func(ctx context.Context, name string, ttl, patience time.Duration) (func() error, error) {
		key, me := "rueidislock:0:"+name, strconv.FormatInt(time.Now().UnixNano(), 36)
		for end := time.Now().Add(patience); ; {
			rs := c.DoMulti(ctx,
				c.B().Set().Key(key).Value(me).Nx().PxatMillisecondsTimestamp(time.Now().Add(ttl).UnixMilli()).Build(),
				c.B().Get().Key(key).Build())
			err := rs[0].Error()
			if err == nil {
				return func() error {
					if n, err := del.Exec(ctx, c, []string{key}, []string{me}).AsInt64(); n != 1 {
						return fmt.Errorf("rueidislock had lost it: %w", err)
					}
					return nil
				}, nil
			}
			if !rueidis.IsRedisNil(err) {
				return nil, err
			}
			if !time.Now().Before(end) {
				return nil, errBusy
			}
			select {
			case <-changed: // the only signal: it does not poll
			case <-time.After(time.Until(end)):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// hasp and another library contend for the same key: a counter that each reads, and then writes
// one higher, is exact.
func TestInteropCounter(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, p := range peers(t, server) {
		t.Run(p.name, func(t *testing.T) {
			if got, want := contend(t, server, p, p.lock); got != want {
				t.Errorf("the counter is %d after %d increments", got, want)
			}
		})
	}
	// The control: a peer that does not lock, as if it had another prefix.
	p := peers(t, server)[0]
	blind := func(context.Context, string, time.Duration, time.Duration) (func() error, error) {
		return func() error { return nil }, nil
	}
	if got, want := contend(t, server, p, blind); got == want {
		t.Error("the counter is exact without the other's lock: this test proves nothing")
	}
}

// contend increments a counter from both sides.
func contend(t *testing.T, server *backends.Redis, p peer, lock func(context.Context, string, time.Duration, time.Duration) (func() error, error)) (got, want int) {
	const workers, rounds = 3, 15
	name := "counted"
	do(t, server, "SET", "counter", "0")
	increment := func() error {
		text, err := server.Do("GET", "counter")
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		_, err = server.Do("SET", "counter", strconv.Itoa(n+1))
		return err
	}
	var wg sync.WaitGroup
	for range workers {
		c := client(t, server.URL()+"?strategy=setnx"+p.query)
		wg.Go(func() {
			for range rounds {
				l, err := c.Mutex(name).Lock(t.Context())
				if err == nil {
					err = errors.Join(increment(), l.Release(t.Context()))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				unlock, err := lock(t.Context(), name, 2*slack, 4*slack)
				if err == nil {
					err = errors.Join(increment(), unlock())
				}
				if err != nil {
					t.Errorf("%s: %v", p.name, err)
				}
			}
		})
	}
	wg.Wait()
	got, _ = strconv.Atoi(do(t, server, "GET", "counter"))
	return got, 2 * workers * rounds
}

// A holder keeps the other side out; a waiter follows when the holder releases, or has died.
func TestInteropHandOver(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, p := range peers(t, server) {
		t.Run(p.name, func(t *testing.T) {
			c := client(t, server.URL()+"?strategy=setnx"+p.query)
			ctx := t.Context()

			l := testkit.Lock(t, c, "ours")
			if _, err := p.lock(ctx, "ours", slack, 0); !errors.Is(err, errBusy) {
				t.Errorf("%s while we hold: %v", p.name, err)
			}
			theirs := make(chan error, 1)
			go func() {
				unlock, err := p.lock(ctx, "ours", slack, 2*slack)
				if err == nil {
					err = unlock()
				}
				theirs <- err
			}()
			time.Sleep(50 * time.Millisecond)
			if len(theirs) > 0 {
				t.Errorf("%s got it while we hold: %v", p.name, <-theirs)
			}
			if err := l.Release(ctx); err != nil {
				t.Error(err)
			}
			if err := <-theirs; err != nil {
				t.Errorf("%s after our release: %v", p.name, err)
			}

			unlock, err := p.lock(ctx, "theirs", 2*slack, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Mutex("theirs").TryLock(ctx); !errors.Is(err, hasp.ErrBusy) {
				t.Errorf("we while %s holds: %v", p.name, err)
			}
			got := waitingTry(t, c, "theirs")
			if len(got) > 0 {
				t.Errorf("we got it while %s holds", p.name)
			}
			if err := unlock(); err != nil {
				t.Error(err)
			}
			testkit.Granted(t, got)

			// A peer that dies: its key expires, and no message announces that.
			began := time.Now()
			if _, err := p.lock(ctx, "dead", time.Second, 0); err != nil {
				t.Fatal(err)
			}
			next := testkit.Lock(t, c, "dead")
			if waited := time.Since(began); waited < 900*time.Millisecond {
				t.Errorf("we got it %s after %s took it for a second", waited, p.name)
			}
			if next.Token() == 0 {
				t.Error("no token")
			}
		})
	}
}
