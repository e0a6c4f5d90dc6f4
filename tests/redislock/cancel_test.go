package redislock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

// A renewal that is cancelled before its answer keeps the connections, because a Leave uses the
// same ones. A renewal that has used up its time closes them, or the next would hang on them, too:
// that is the control.
func TestCancelledRenewal(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx"} { // redisson listens anew for each name
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			net := testkit.Proxy(t, server.Addr)
			b := testkit.Open(t, "redis://"+net.Addr()+"?strategy="+strategy)
			defer b.Close()
			s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: 2 * slack, Gone: func(string, error) {}})
			must(t, err)
			defer s.Close(context.WithoutCancel(t.Context()))

			// renewed makes a renewal without an answer, and then a Leave. limit is called last:
			// the renewal's time must not be over before it begins.
			renewed := func(limit func() (context.Context, context.CancelFunc), id string) error {
				held := s.Ticket(driver.Request{Name: "a", ID: id, Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()})
				if v, err := held.Enqueue(t.Context()); err != nil || !v.Held {
					t.Fatalf("%+v, %v", v, err)
				}
				net.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Hold})
				ctx, cancel := limit()
				defer cancel()
				_, renewal := s.KeepAlive(ctx)
				net.Set(faultnet.Down, faultnet.Rule{})
				if err := held.Leave(t.Context()); err != nil && errors.Is(renewal, context.Canceled) {
					t.Errorf("leave after a renewal that was cancelled: %v", err)
				}
				return renewal
			}
			before := net.Stats().Accepted
			cancelled := func() (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(T/10, cancel)
				return ctx, cancel
			}
			if err := renewed(cancelled, "cancelled"); !errors.Is(err, context.Canceled) {
				t.Errorf("renewal: %v", err)
			}
			// The lone request's connection cannot be cancelled otherwise than by closing it; the
			// subscriptions' stays.
			if n := net.Stats().Accepted - before; n > 1 {
				t.Errorf("%d connections were made anew", n)
			}
			before = net.Stats().Accepted
			overdue := func() (context.Context, context.CancelFunc) { return context.WithTimeout(t.Context(), T/10) }
			if err := renewed(overdue, "overdue"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("renewal: %v", err)
			}
			testkit.Eventually(t, "a renewal without an answer closes its connections", func() bool {
				return net.Stats().Accepted != before
			})
		})
	}
}
