package hasp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// Who asks, gives up and asks again is told each time; a waiter is told once for as long as it
// waits.
func TestRevocableByManyInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, other, third := client(t, store.Backend()), client(t, store.Backend()), client(t, store.Backend())
		asked := make(chan string, 9)
		if _, err := c.Mutex("a", hasp.Revocable(0, func(by hasp.Owner) { asked <- by.Asks })).Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		stays, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _, _ = other.Mutex("a", hasp.AskHolder("stays")).Lock(stays) }()
		if why := <-asked; why != "stays" {
			t.Errorf("asked by %q", why)
		}
		for range 3 {
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, _ = third.Mutex("a", hasp.AskHolder("comes and goes")).Lock(ctx) }()
			if why := <-asked; why != "comes and goes" {
				t.Errorf("asked by %q", why)
			}
			cancel()
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		if len(asked) != 0 {
			t.Errorf("asked again by %q", <-asked)
		}
	})
}

// Without a watch a request is heard at the next look, once, and Inspect shows which holder
// listens.
func TestRevocableUnwatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		client := func() *hasp.Client {
			c, err := hasp.New(store.Backend(), hasp.WithTTL(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = c.Close() })
			return c
		}
		c := client()
		asked := make(chan hasp.Owner, 9)
		for name, opts := range map[string][]hasp.LockOption{
			"listens": {hasp.Revocable(10*time.Second, func(by hasp.Owner) { asked <- by })}, "deaf": nil,
		} {
			if _, err := c.Mutex(name, opts...).Lock(t.Context()); err != nil {
				t.Fatal(err)
			}
			q, err := c.Inspect(t.Context(), name)
			if err != nil || len(q.Holders) != 1 || q.Holders[0].Owner.Listens != (opts != nil) {
				t.Errorf("%s: %+v, %v", name, q, err)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began := time.Now()
		other := client()
		for _, name := range []string{"listens", "deaf"} {
			go func() { _, _ = other.Mutex(name, hasp.AskHolder("hotfix")).Lock(ctx) }()
		}
		if by := <-asked; by.Asks != "hotfix" || time.Since(began) != 10*time.Second {
			t.Errorf("%+v after %s", by, time.Since(began))
		}
		time.Sleep(time.Hour)
		if len(asked) != 0 {
			t.Errorf("asked again: %+v", <-asked)
		}
	})
}
