package testkit

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hasplock/hasp"
)

// Drawn is the token of a lock that is released at once.
func Drawn(t testing.TB, c *hasp.Client, name string) uint64 {
	t.Helper()
	l := Lock(t, c, name)
	Release(t, l)
	return l.Token()
}

// TokensRise demands that each of the clients, one after the other, draws a token above the one before.
func TokensRise(t testing.TB, last uint64, name string, clients ...*hasp.Client) {
	t.Helper()
	for i, c := range clients {
		next := Drawn(t, c, name)
		if next <= last {
			t.Errorf("client %d: token %d after %d", i, next, last)
		}
		last = next
	}
}

// TokensGrow has clients that open makes contend for three names, demands that the tokens of each grow, and returns the last ones.
func TokensGrow(t testing.TB, open func() *hasp.Client) map[string]uint64 {
	t.Helper()
	names := []string{"a", "b", "c"}
	last := make([]atomic.Uint64, len(names))
	var wg sync.WaitGroup
	for range 4 {
		c := open()
		for i, name := range names {
			wg.Go(func() {
				for range 60 {
					l, err := c.Mutex(name).Lock(Context(t))
					if err != nil {
						t.Error(err)
						return
					}
					if before := last[i].Swap(l.Token()); l.Token() <= before {
						t.Errorf("%s: token %d after %d", name, l.Token(), before)
					}
					if err := l.Release(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
	all := map[string]uint64{}
	for i, name := range names {
		all[name] = last[i].Load()
	}
	return all
}
