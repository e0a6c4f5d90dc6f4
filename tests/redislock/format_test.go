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

// The format of docs/internals/redis.md, and when a name changes from one form to the other.
func TestQueueFormat(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := client(t, server.URL()), client(t, server.URL())
	const key, seq, kept, whole = "hasp:{orders%2f42}", `1\d{15}`, `1\d{12}`, "2147483647"
	now := func() map[string]string { return fields(t, server, key) }
	entry := func(id string) string {
		return id + " " + seq + " " + seq + " " + whole + " " + whole + ` [a-z0-9]{16} 1\d{15} .*`
	}
	alone := func(id string) map[string]string {
		return map[string]string{"hasp2": seq + " " + kept, "one": entry(id)}
	}

	l := testkit.Lock(t, c, "orders/42")
	wantFields(t, "a lone holder", now(), alone(l.ID()))
	if _, err := other.Mutex("orders/42").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
		t.Errorf("try while the lock is held: %v", err)
	}
	wantFields(t, "after a failed try", now(), alone(l.ID()))

	got := testkit.Queued(t, other, "orders/42")
	second := testkit.Entries(t, c, "orders/42")[1].ID
	wantFields(t, "with a waiter", now(), map[string]string{
		"hasp2": seq + " " + kept + " " + whole + " " + whole + " 1 " + seq + " 1 1 0 0",
		"one":   entry(l.ID()), "w:1": entry(second), "e:" + second: "w:1",
	})
	must(t, l.Release(t.Context()))
	l = testkit.Granted(t, got)
	wantFields(t, "after the hand-over", now(), alone(second))
	must(t, l.Release(t.Context()))
	wantFields(t, "an idle name", now(), map[string]string{"hasp2": seq + " " + kept})

	r, err := c.RWMutex("orders/42").RLock(t.Context())
	must(t, err)
	r2, err := other.RWMutex("orders/42").RLock(t.Context())
	must(t, err)
	reader := func(id string) string { return strings.Replace(entry(id), " "+whole, " 1", 1) }
	wantFields(t, "two readers", now(), map[string]string{
		"hasp2": seq + " " + kept + " " + whole + " 2 2 " + seq + " 1 0 0 0",
		"h:1":   reader(r.ID()), "h:2": reader(r2.ID()), "e:" + r.ID(): "h:1", "e:" + r2.ID(): "h:2",
	})
	if r2.Token() <= r.Token() || r.Token() <= l.Token() {
		t.Errorf("tokens %d, %d, %d", l.Token(), r.Token(), r2.Token())
	}
}
