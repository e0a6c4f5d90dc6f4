package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// refuses demands that the error is a refusal for good, of another format, and says what to do.
func refuses(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, hasp.ErrInvalid) {
		t.Errorf("%s: %v, want a refusal", what, err)
		return
	}
	for _, w := range append(words, "has format", "remove the keys that begin with hasp:") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %v: says nothing of %q", what, err, w)
		}
	}
}

// A mark of another format, newer or older or without a number, is refused at the first use, by a
// try, by one that would wait, and by a client that was at work before; nothing is written. The
// control is the mark as it was.
func TestOtherMark(t *testing.T) {
	for _, strategy := range strategies {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			storeURL := server.URL() + "?strategy=" + strategy
			mark := map[bool]string{true: "hasp:mark", false: "hasp:lock:mark"}[strategy == "queue"]
			old := client(t, storeURL, hasp.WithTTL(T))
			testkit.UseDespiteErrors(t, old, "used")
			held := testkit.Lock(t, old, "held")
			told := do(t, server, "HGET", mark, "told")
			_, rest, _ := strings.Cut(told, ".")
			for _, number := range []int{5, 3} {
				do(t, server, "HSET", mark, "told", fmt.Sprintf("%d.%s", number, rest))
				before := strings.Split(do(t, server, "KEYS", "*"), "\n")
				c := client(t, storeURL)
				ctx, cancel := context.WithTimeout(t.Context(), slack)
				defer cancel()
				_, err := c.Mutex("a").TryLock(ctx)
				refuses(t, "a try", err, fmt.Sprintf("the key %s has format %d", mark, number), "format 4")
				_, err = c.Mutex("a").Lock(ctx)
				refuses(t, "a lock", err)
				_, err = old.Mutex("a").TryLock(ctx)
				refuses(t, "a try of a client that is at work", err)
				testkit.WantFinding(t, findings(t, storeURL), "quarantine", driver.Bad, fmt.Sprintf("has format %q", fmt.Sprint(number)))
				after := strings.Split(do(t, server, "KEYS", "*"), "\n")
				if slices.Sort(before); !slices.Equal(before, slices.Sorted(slices.Values(after))) {
					t.Errorf("keys %q became %q", before, after)
				}
			}
			testkit.Eventually(t, "the end of a lock that cannot be renewed", func() bool { return !held.Held() })
			if err := held.Err(); !strings.Contains(err.Error(), "has format 3") {
				t.Errorf("the lock has ended: %v", err)
			}
			do(t, server, "HSET", mark, "told", told)
			testkit.UseDespiteErrors(t, client(t, storeURL, hasp.WithTTL(T)), "a")
		})
	}
}

// A queue of another format is refused by all that meet it, and a list of names does not say that
// nothing is held. It is left alone. The control is the queue of our format in the same list.
func TestOtherQueue(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	storeURL := server.URL()
	c := client(t, storeURL, hasp.WithTTL(T))
	testkit.UseDespiteErrors(t, c, "used")
	for _, number := range []int{1, 3, 12} {
		key := fmt.Sprintf("hasp:{other-%d}", number)
		do(t, server, "HSET", key, fmt.Sprintf("hasp%d", number), "1700000000000000 0", "more", "x")
		before := do(t, server, "DUMP", key)
		name := strings.Trim(key, "hasp:{}")
		ctx, cancel := context.WithTimeout(t.Context(), slack)
		defer cancel()
		words := []string{fmt.Sprintf("%q has format %d", key, number), "format 2"}
		_, err := c.Mutex(name).TryLock(ctx)
		refuses(t, "a try", err, words...)
		_, err = c.Mutex(name).Lock(ctx)
		refuses(t, "a lock", err, words...)
		_, err = c.Inspect(ctx, name)
		refuses(t, "a look", err, words...)
		testkit.Lock(t, c, fmt.Sprint("ours-", number))
		_, err = names(ctx, c, "")
		refuses(t, "the names", err, words...)
		if got, err := names(ctx, c, "ours-"); err != nil || len(got) == 0 {
			t.Errorf("names of our format alone: %q, %v", got, err)
		}
		if do(t, server, "DUMP", key) != before {
			t.Error("the key was touched")
		}
		testkit.WantFinding(t, findings(t, storeURL), "format", driver.Bad, words[0])
		do(t, server, "DEL", key)
	}
}

func names(ctx context.Context, c *hasp.Client, prefix string) (all []string, err error) {
	for name, err := range c.Names(ctx, prefix) {
		if err != nil {
			return all, err
		}
		all = append(all, name)
	}
	return all, nil
}

// What the formats with a number store, of names that have holders, waiters and values, that were
// evicted from, and that are free. A change here needs another number: Format of package
// quarantine, and queueFormat, which are in what is stored.
func TestStoredFormats(t *testing.T) {
	for strategy, known := range map[string]struct {
		number int
		hash   string
	}{
		"queue":    {2, "d4290d2a6e0747fe"},
		"setnx":    {4, "cc3d09f5d7b95851"},
		"redisson": {4, "30ca9a6e388a204d"},
	} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			b := testkit.Open(t, server.URL()+"?strategy="+strategy)
			first, second := session(t, b, time.Hour), session(t, b, time.Hour)
			enter := func(s driver.Session, r driver.Request, id string) driver.Ticket {
				r.ID, r.Owner = id, "ana"
				ticket := s.Ticket(r)
				testkit.Entered(t, ticket)
				return ticket
			}
			testkit.Held(t, first.Ticket(testkit.RequestAs("warm", "warm")))
			free := enter(first, testkit.Request("free"), "free")
			must(t, free.Leave(t.Context()))
			enter(first, testkit.Request("one"), "held")
			enter(second, testkit.Request("one"), "waits")
			if strategy == "queue" {
				r := testkit.Request("several")
				r.Units, r.Value = 1, []byte("v")
				enter(first, r, "reads")
				enter(second, r, "reads-too")
				enter(first, testkit.Request(strings.Repeat("long", 100)), "long")
				enter(first, testkit.Request("evicted"), "evicted")
				must(t, b.(driver.Evicter).Evict(t.Context(), "evicted", "evicted", "note"))
			}
			var stored []string
			keys := strings.Split(do(t, server, "KEYS", "*"), "\n")
			for _, key := range slices.Sorted(slices.Values(keys)) {
				stored = append(stored, testkit.Shape(key)+": "+contents(t, server, key))
			}
			testkit.SameFormat(t, strategy, known.number, stored, known.hash)
		})
	}
}

// contents are those of a key, a line, without what differs from run to run.
func contents(t *testing.T, server *backends.Redis, key string) string {
	t.Helper()
	switch kind := do(t, server, "TYPE", key); kind {
	case "string":
		return testkit.Shape(do(t, server, "GET", key))
	case "zset":
		return testkit.Shape(do(t, server, "ZRANGE", key, "0", "-1"))
	case "hash":
		var all []string
		for field, value := range fields(t, server, key) {
			all = append(all, testkit.Shape(field+"="+value))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	default:
		return kind
	}
}
