package redislock_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// left is the time that a key has left at the server.
func left(t *testing.T, server *backends.Redis, key string) time.Duration {
	t.Helper()
	ms, err := strconv.ParseInt(do(t, server, "PTTL", key), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(ms) * time.Millisecond
}

// held opens a session below the core, which is never renewed, and takes a lock.
func held(t *testing.T, storeURL, name string, ttl time.Duration) (driver.Session, driver.Ticket) {
	t.Helper()
	s := session(t, testkit.Open(t, storeURL), ttl)
	ticket := s.Ticket(testkit.Request(name))
	if v, err := ticket.Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	return s, ticket
}

// session opens a session that is never renewed.
func session(t *testing.T, b driver.Backend, ttl time.Duration) driver.Session {
	t.Helper()
	t.Cleanup(func() { _ = b.Close() }) // after the session
	return testkit.Session(t, b, ttl, nil)
}

// keptFor demands that a name is kept for at least want.
func keptFor(t *testing.T, server *backends.Redis, what string, want time.Duration) {
	t.Helper()
	if got := left(t, server, "hasp:{a}"); got < want-time.Minute {
		t.Errorf("%s: the key has %s left, and is needed for %s", what, got, want)
	}
}

// A name is not forgotten while a client may hold it whose TTL is longer than the retention.
// (PEXPIRE was the retention of the last client.)
func TestNameOutlastsTTL(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const long = 30 * time.Hour // the default retention is a day
	atLeast := func(what string, want time.Duration) { t.Helper(); keptFor(t, server, what, want) }
	s, ticket := held(t, server.URL(), "a", long)
	atLeast("a TTL longer than the retention", long)
	_, err := s.KeepAlive(t.Context())
	must(t, err)
	atLeast("renewed", long)
	must(t, ticket.Leave(t.Context()))

	do(t, server, "DEL", "hasp:{a}")
	brief := server.URL() + "?retention=1h"
	_, first := held(t, brief, "a", T)
	must(t, first.Leave(t.Context()))
	_, ticket = held(t, brief, "a", 4*time.Hour) // right behind one that needs it for less
	atLeast("a TTL longer than a short retention", 4*time.Hour)
	must(t, ticket.Leave(t.Context()))
	_, ticket = held(t, server.URL(), "a", T)
	atLeast("the default retention behind a short one", 24*time.Hour)
	must(t, ticket.Leave(t.Context()))
}

// Nor is it forgotten because another client keeps names for less: such a client runs each script
// that changes the key's expiry.
func TestShortRetentionBesideLong(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	const day = 24 * time.Hour
	brief := server.URL() + "?retention=1h"
	atLeast := func(what string, want time.Duration) { t.Helper(); keptFor(t, server, what, want) }
	_, ticket := held(t, server.URL(), "a", T*10)
	other := session(t, testkit.Open(t, brief), T*10)
	waits := other.Ticket(testkit.Request("a"))
	if v, err := waits.Enqueue(t.Context()); err != nil || v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	atLeast("another waits", day)
	_, err := waits.Enqueue(t.Context())
	must(t, err)
	atLeast("another asks again", day)
	_, err = other.KeepAlive(t.Context())
	must(t, err)
	atLeast("another renews", day)
	watching, stop := context.WithCancel(t.Context())
	b := testkit.Open(t, brief)
	defer b.Close()
	_ = b.(driver.Watcher).Watch(watching, "a", stop)
	atLeast("another watches", day)
	must(t, ticket.Leave(t.Context()))
	if v, err := waits.Enqueue(t.Context()); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	_, err = other.KeepAlive(t.Context())
	must(t, err)
	must(t, waits.Leave(t.Context()))

	r := testkit.Request("a")
	mine := session(t, testkit.Open(t, server.URL()), T*10).Ticket(r)
	v, err := mine.Enqueue(t.Context())
	must(t, err)
	adopted := other.Ticket(testkit.Request("a"))
	_, err = adopted.(driver.Adopter).Adopt(t.Context(), r.ID, v.Token)
	must(t, err)
	atLeast("another takes it over", day)
	_, err = other.KeepAlive(t.Context())
	must(t, err)
	atLeast("another renews the only entry", day)
	_, err = adopted.Enqueue(t.Context())
	must(t, err)
	atLeast("another asks for the only entry", day)
}

// The same for the keys beside those that are shared with other libraries: the counter of the
// tokens, and the description of the holder.
func TestCompanionsOutlastTTL(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=" + strategy
			const long, day = 30 * time.Hour, 24 * time.Hour
			s, ticket := held(t, storeURL, "a", long)
			keys := []string{"hasp:lock:t:{a}"}
			if strategy == "redisson" {
				keys = append(keys, "hasp:lock:d:{a}")
			}
			for _, key := range keys {
				if got := left(t, server, key); got < long {
					t.Errorf("%s has %s left, and the TTL is %s", key, got, long)
				}
			}
			must(t, ticket.Leave(t.Context()))
			must(t, s.Close(t.Context()))
			_, other := held(t, storeURL+"&retention=1h", "a", T)
			must(t, other.Leave(t.Context()))
			if got := left(t, server, "hasp:lock:t:{a}"); got < day-time.Minute {
				t.Errorf("a client that keeps counters for an hour leaves %s of a day", got)
			}
		})
	}
}

// Times that cannot be kept are refused: a server counts microseconds in 53 bits.
func TestEndlessTTL(t *testing.T) {
	server := backends.SharedRedis(t)
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		c := client(t, server.URL()+"?strategy="+strategy, hasp.WithTTL(11*365*24*time.Hour))
		if _, err := c.Mutex("endless").Lock(t.Context()); !errors.Is(err, hasp.ErrInvalid) {
			t.Errorf("%s: %v", strategy, err)
		}
	}
	if _, err := hasp.Open(t.Context(), server.URL()+"?retention=100000h"); !errors.Is(err, hasp.ErrInvalid) {
		t.Errorf("a retention of more than ten years: %v", err)
	}
}

// L2: a waiter is woken by a release although another waiter, or the waiter itself, has a TTL much
// shorter than the time for which it sleeps. (The set of the waiters expired after twice the TTL
// of the last one. A waiter then slept until the holder's key would have expired.)
func TestWaiterSetOutlastsWait(t *testing.T) {
	t.Parallel()
	const endless = 10 * time.Minute // the holder's TTL: no waiter is woken by the end of its key
	for what, ttls := range map[string][]time.Duration{
		"another with a shorter TTL":      {endless, 200 * time.Millisecond},
		"a TTL shorter than the holder's": {200 * time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=setnx"
			_, holder := held(t, storeURL, "a", endless)
			var sleeper driver.Ticket
			for i, ttl := range ttls {
				ticket := session(t, testkit.Open(t, storeURL), ttl).Ticket(testkit.Request("a"))
				if v, err := ticket.Enqueue(t.Context()); err != nil || v.Held || v.Retry < endless/2 {
					t.Fatalf("%+v, %v", v, err)
				}
				if i == 0 {
					sleeper = ticket
				} else {
					defer ticket.Leave(t.Context())
				}
			}
			if got := left(t, server, "hasp:lock:w:{a}"); got < endless {
				t.Errorf("the set of the waiters lasts for %s, and a waiter sleeps for %s", got, endless)
			}
			time.Sleep(time.Second)
			must(t, holder.Leave(t.Context()))
			ctx, cancel := context.WithTimeout(t.Context(), slack)
			defer cancel()
			if v, err := sleeper.Wait(ctx); err != nil || !v.Held {
				t.Errorf("woken: %+v, %v", v, err)
			}
		})
	}
}

// The keys of setnx and redisson expire after whole milliseconds, and a session is granted no more
// than the server is asked for.
func TestGrantsWhatIsAskedFor(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	for _, strategy := range []string{"setnx", "redisson"} {
		b := testkit.Open(t, server.URL()+"?strategy="+strategy)
		s, granted, err := b.Open(t.Context(), driver.SessionOptions{TTL: 2*time.Second + 999*time.Microsecond, Gone: func(string, error) {}})
		must(t, err)
		if granted != 2*time.Second {
			t.Errorf("%s: granted %s", strategy, granted)
		}
		if granted, err = s.KeepAlive(t.Context()); err != nil || granted != 2*time.Second {
			t.Errorf("%s: renewed for %s, %v", strategy, granted, err)
		}
		must(t, s.Close(t.Context()))
		must(t, b.Close())
	}
}
