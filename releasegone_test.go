package hasp_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// A release under way has ends: that of the session, and three TTLs. They hold also where the store
// tells meanwhile that the entry has gone, or where the entry's own time is over because a renewal
// did not reach it. The store does not answer the release in any of these.
func TestReleaseEndsWithoutItsEntry(t *testing.T) {
	const hour = time.Hour
	for name, x := range map[string]struct {
		opts  []hasp.LockOption
		event func(b *spoiled, c *hasp.Client, l *hasp.Lease)
		bound time.Duration
	}{
		"gone": {nil, func(b *spoiled, _ *hasp.Client, l *hasp.Lease) { b.opts.Gone(l.ID(), driver.ErrGone) }, T},
		"gone, then the client is closed": {nil, func(b *spoiled, c *hasp.Client, l *hasp.Lease) {
			b.opts.Gone(l.ID(), driver.ErrGone)
			_ = c.Close()
		}, T}, // Close itself takes five seconds
		"gone while MinHold lasts": {[]hasp.LockOption{hasp.MinHold(hour)}, func(b *spoiled, _ *hasp.Client, l *hasp.Lease) {
			b.opts.Gone(l.ID(), driver.ErrGone)
		}, T},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, c, _ := pair(t)
				l, err := c.Mutex("a", x.opts...).Lock(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				b.plan("leave", plan{err: errNetwork})
				b.plan("keepalive", plan{err: errNetwork})
				b.plan("close", plan{err: errNetwork})
				released, began := releaseLater(l, hour/2), time.Now()
				synctest.Wait()
				x.event(b, c, l)
				wantErr(t, <-released, hasp.ErrUnknown)
				if got := time.Since(began); got > x.bound {
					t.Errorf("returned after %s, want %s at most", got, x.bound)
				}
			})
		})
	}
}

// As above for an entry that is late, whose time is over while MinHold keeps the lock: no two
// requests of a ticket to leave are under way at once, and the end of the session ends the release.
func TestReleaseOfALateEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := &laggard{Backend: memlock.New().Backend()}
		b := &spoiled{Backend: late}
		c := client(t, b)
		l, err := c.Mutex("a", hasp.MinHold(time.Hour)).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		id := l.ID()
		late.late.Store(&id)
		time.Sleep(T / 2) // a renewal that did not reach it
		released := releaseLater(l, time.Hour/2)
		time.Sleep(T) // its time is over; the session lives
		late.late.Store(nil)
		b.plan("keepalive", plan{err: errNetwork})
		began := time.Now()
		wantErr(t, <-released, hasp.ErrUnknown)
		if got := time.Since(began); got > T {
			t.Errorf("the release has outlived its session: %s", got)
		}
	})
}

func releaseLater(l *hasp.Lease, bound time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		done <- l.Release(ctx)
	}()
	return done
}
