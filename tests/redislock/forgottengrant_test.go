package redislock_test

import (
	"errors"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A server that is started from an old file has a leader among the waiters, and its predecessor in
// front. The leader publishes, and a holder downgrades, as if the server knew of the grant.
// Afterwards the name is free for others.
func TestChangeOfForgottenGrant(t *testing.T) {
	for _, what := range []string{"publish", "downgrade"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			old, c := client(t, server.URL(), hasp.WithTTL(onDisk)), client(t, server.URL(), hasp.WithTTL(onDisk))
			lock := func(c *hasp.Client) (l *hasp.Lease, change func() error, err error) {
				if what == "downgrade" {
					l, err = c.RWMutex("a").Lock(t.Context())
					return l, func() error { return l.Downgrade(t.Context()) }, err
				}
				term, err := c.Election("a").Campaign(t.Context(), []byte("candidate"))
				if err != nil {
					return nil, nil, err
				}
				return term.Lease, func() error { return term.Publish(t.Context(), []byte("leader")) }, nil
			}
			first, _, err := lock(old)
			must(t, err)
			type granted struct {
				*hasp.Lease
				change func() error
				err    error
			}
			got := make(chan granted, 1)
			go func() {
				l, change, err := lock(c)
				got <- granted{l, change, err}
			}()
			testkit.Eventually(t, "the waiter's entry", func() bool { return len(testkit.Entries(t, old, "a")) == 2 })
			do(t, server, "SAVE")
			testkit.Release(t, first)
			held := testkit.Await(t, "the grant", got)
			must(t, held.err)
			must(t, server.Kill())
			must(t, server.Restart())
			testkit.Until(t, what, func() error {
				err := held.change()
				if errors.Is(err, hasp.ErrLost) {
					t.Fatal(err)
				}
				return err
			})
			if !held.Held() {
				t.Error(held.Err())
			}
			if what == "downgrade" { // as soon as the first one's entry, which the file has, is over
				testkit.Until(t, "another reader", func() error {
					l, err := old.RWMutex("a").TryRLock(t.Context())
					if err == nil {
						testkit.Release(t, l)
					}
					return err
				})
				if !held.Held() {
					t.Error(held.Err())
				}
			}
			testkit.Release(t, held.Lease)
			testkit.Release(t, testkit.LockDespiteErrors(t, old, "a"))
		})
	}
}
