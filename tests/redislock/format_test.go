package redislock_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// fields reads a name's hash.
func fields(t *testing.T, server *backends.Redis, key string) map[string]string {
	t.Helper()
	lines := strings.Split(do(t, server, "HGETALL", key), "\n")
	hash := map[string]string{}
	for i := 0; i+1 < len(lines); i += 2 {
		hash[lines[i]] = lines[i+1]
	}
	return hash
}

// wantFields demands exactly these fields, each matching its pattern.
func wantFields(t *testing.T, when string, got map[string]string, want map[string]string) {
	t.Helper()
	for field, pattern := range want {
		if !regexp.MustCompile("^(?:" + pattern + ")$").MatchString(got[field]) {
			t.Errorf("%s: field %q is %q, want %s", when, field, got[field], pattern)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s: %d fields %v, want %d", when, len(got), got, len(want))
	}
}

// The format of docs/backends/redis.md, and when a name changes from one form to the other.
func TestQueueFormat(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	const key, seq, whole = "hasp:{orders%2f42}", `1\d{15}`, "2147483647"
	now := func() map[string]string { return fields(t, server, key) }
	alone := func(l *hasp.Lease) map[string]string {
		return map[string]string{"hasp1": seq, "one": l.ID() + " " + seq + " " + whole + " " + whole + ` [a-z0-9]{16} 1\d{15} .*`}
	}

	l := testkit.Lock(t, c, "orders/42")
	wantFields(t, "a lone holder", now(), alone(l))
	if _, err := other.Mutex("orders/42").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("try while the lock is held: %v", err)
	}
	wantFields(t, "after a failed try", now(), alone(l))

	got := testkit.Queued(t, other, "orders/42")
	second := testkit.Entries(t, c, "orders/42")[1].ID
	entry := func(place string) string {
		return seq + " " + whole + " " + seq + " " + place + ` [a-z0-9]{16} 1\d{15} .*`
	}
	wantFields(t, "with a waiter", now(), map[string]string{
		"hasp1": seq + `\+`, "queue": whole + " " + whole + " 1 " + seq + " 1 1", "h:1": l.ID(), "w:1": second,
		"e:" + l.ID(): entry("h1"), "e:" + second: entry("w1"),
	})
	must(t, l.Release(t.Context()))
	l = testkit.Granted(t, got)
	wantFields(t, "after the hand-over", now(), map[string]string{
		"hasp1": seq + `\+`, "queue": whole + " " + whole + " 1 " + seq + " 2 1", "h:1": second, "e:" + second: entry("h1"),
	})
	must(t, l.Release(t.Context()))
	wantFields(t, "after the last release", now(), map[string]string{"hasp1": seq + `\+`})
	l = testkit.Lock(t, c, "orders/42")
	wantFields(t, "a lone holder again", now(), alone(l))
	must(t, l.Release(t.Context()))
	wantFields(t, "an idle name", now(), map[string]string{"hasp1": seq})

	r, err := c.RWMutex("orders/42").RLock(t.Context())
	must(t, err)
	r2, err := other.RWMutex("orders/42").RLock(t.Context())
	must(t, err)
	if h := now(); h["h:1"] != r.ID() || h["h:2"] != r2.ID() || !strings.HasPrefix(h["queue"], whole+" 2 2 ") {
		t.Errorf("two readers: %v", h)
	}
	if r2.Token() <= r.Token() || r.Token() <= l.Token() {
		t.Errorf("tokens %d, %d, %d", l.Token(), r.Token(), r2.Token())
	}
}
