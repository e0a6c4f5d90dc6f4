package redlock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

func identity(t *testing.T, storeURL string) (string, error) {
	t.Helper()
	b := testkit.Open(t, storeURL)
	defer b.Close()
	text, err := b.(driver.Identifier).Identity(t.Context())
	if len(text) > 200 {
		t.Errorf("an identity of %d bytes", len(text))
	}
	return text, err
}

func identityOf(t *testing.T, storeURL string) string {
	t.Helper()
	text, err := identity(t, storeURL)
	for end := time.Now().Add(testkit.Patience); err != nil && time.Now().Before(end); { // a busy machine may not connect in time
		text, err = identity(t, storeURL)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A set of servers is one store in every order and by every name that they are given. Other
// sets, prefixes and databases are others.
func TestIdentity(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	storeURL := urlOf(nodes)
	want := identityOf(t, storeURL)
	turned := slices.Clone(nodes)
	slices.Reverse(turned)
	for _, same := range []string{
		urlOf(turned), strings.ReplaceAll(storeURL, "127.0.0.1", "localhost"), storeURL + "?node_timeout=1s", storeURL + "/0",
	} {
		if got := identityOf(t, same); got != want {
			t.Errorf("%s is %q, and %s is %q", storeURL, want, same, got)
		}
	}
	seen := []string{want}
	for _, other := range []string{storeURL + "?prefix=shop:", storeURL + "/1", urlOf(backends.StartRedisNodes(t, 3, backends.RedisOptions{}))} {
		got := identityOf(t, other)
		if slices.Contains(seen, got) {
			t.Errorf("%s is %q, as another", other, got)
		}
		seen = append(seen, got)
	}
}

// A set's name is made when all servers answer. From then on any minority may be away. Servers that
// are restarted one after the other, each without its data, get it back from the renewals of a
// client that knows it.
func TestIdentityWithServersAway(t *testing.T) {
	t.Parallel()
	nodes := backends.StartRedisNodes(t, 5, backends.RedisOptions{})
	storeURL := urlOf(nodes)
	each(t, nodes[:1], kill)
	if text, err := identity(t, storeURL); err == nil || !strings.Contains(err.Error(), "4 of 5 servers answer") {
		t.Errorf("a set without a name, and one server away: %q, %v", text, err)
	}
	each(t, nodes[:1], restart)
	b := testkit.Open(t, storeURL)
	s := session(t, b, calm, noGone)
	want, err := b.(driver.Identifier).Identity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	each(t, nodes[3:], kill)
	if got := identityOf(t, storeURL); got != want {
		t.Errorf("with two servers away it is %q, and was %q", got, want)
	}
	each(t, nodes[3:], restart)
	const set = "hasp:lock:identity:set"
	for i, n := range nodes {
		if err := n.Restart(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, "the name is noted everywhere", func() bool {
			_, _ = s.KeepAlive(t.Context())
			return having(t, nodes, set) == len(nodes)
		})
		if got := identityOf(t, storeURL); got != want {
			t.Errorf("after the restart of %d servers it is %q, and was %q", i+1, got, want)
		}
	}
}
