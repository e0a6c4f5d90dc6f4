package hasp_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
)

// Every request that follows from a call has the values of its context, also when it is sent in the
// background, after the call: a trace of the store's client then belongs to the caller's.
func TestRequestsHaveTheCallersValues(t *testing.T) {
	const mine = "the caller"
	scenarios := map[string]struct {
		calls []string // at least
		run   func(t *testing.T, ctx context.Context, b *spoiled, c, other *hasp.Client)
	}{
		"lock, release": {[]string{"open", "enqueue", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, _ *hasp.Client) {
			l, err := c.Mutex("a").Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			l.Release(ctx)
		}},
		"a deferred Unlock": {[]string{"enqueue", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, _ *hasp.Client) {
			l, err := c.Mutex("a").Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			l.Unlock()
		}},
		"a wait that ends": {[]string{"enqueue", "wait", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, other *hasp.Client) {
			lock(t, other, "a")
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_, err := c.Mutex("a").Lock(ctx)
			wantErr(t, err, context.DeadlineExceeded)
		}},
		"a release that ends": {[]string{"leave", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, _ *hasp.Client) {
			l := lock(t, c, "a")
			b.taken()
			b.plan("leave", plan{before: time.Minute, times: 1})
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			wantErr(t, l.Release(ctx), hasp.ErrUnknown)
		}},
		"MinHold": {[]string{"leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, _ *hasp.Client) {
			l, err := c.Mutex("a", hasp.MinHold(time.Minute)).Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			b.taken()
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			wantErr(t, l.Release(ctx), hasp.ErrUnknown)
		}},
		"MaxHold": {[]string{"enqueue", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, _ *hasp.Client) {
			if _, err := c.Mutex("a", hasp.MaxHold(time.Second)).Lock(ctx); err != nil {
				t.Fatal(err)
			}
		}},
		"one of several is taken": {[]string{"enqueue", "enqueue", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, other *hasp.Client) {
			lock(t, other, "b")
			_, err := hasp.TryLockAll(ctx, c.Mutex("a"), c.Mutex("b"))
			wantErr(t, err, hasp.ErrBusy)
		}},
		"a leader": {[]string{"enqueue", "publish", "leave"}, func(t *testing.T, ctx context.Context, b *spoiled, c, _ *hasp.Client) {
			ctx, cancel := context.WithCancel(ctx)
			err := c.Election("a").Run(ctx, nil, func(ctx context.Context, term *hasp.Term) error {
				cancel()
				return term.Publish(context.WithoutCancel(ctx), nil)
			})
			wantErr(t, err, context.Canceled)
		}},
		"downgrade": {[]string{"downgrade"}, func(t *testing.T, ctx context.Context, b *spoiled, c, other *hasp.Client) {
			l, err := c.RWMutex("a").Lock(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Downgrade(ctx); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for what, s := range scenarios {
		synctest.Test(t, func(t *testing.T) {
			var rec recorder
			b, c, other := pair(t, hasp.WithObserver(&rec))
			s.run(t, context.WithValue(t.Context(), noteKey{}, mine), b, c, other)
			time.Sleep(2 * time.Minute) // what is done in the background
			synctest.Wait()
			var calls []string
			for _, call := range b.taken() {
				if call.name == "keepalive" {
					continue // of the session
				}
				if calls = append(calls, call.name); call.of != mine {
					t.Errorf("%s: the request %s is %v's", what, call.name, call.of)
				}
			}
			for _, want := range s.calls {
				i := slices.Index(calls, want)
				if i < 0 {
					t.Fatalf("%s: no request %s is left among %v", what, want, calls)
				}
				calls = slices.Delete(calls, i, i+1)
			}
		})
	}
}

// So do the functions that hasp calls.
func TestCallbacksHaveTheCallersValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const mine = "the caller"
		var rec recorder
		b, c, _ := pair(t, hasp.WithObserver(&rec))
		ctx := context.WithValue(t.Context(), noteKey{}, mine)
		for what, do := range map[string]func(func(context.Context) error) error{
			"Do": func(fn func(context.Context) error) error { return c.Do(ctx, "a", fn) },
			"DoAll": func(fn func(context.Context) error) error {
				return hasp.DoAll(ctx, []hasp.Locker{c.Mutex("a")}, func(ctx context.Context, _ *hasp.MultiLease) error { return fn(ctx) })
			},
			"Run": func(fn func(context.Context) error) error {
				return c.Election("a").Run(ctx, nil, func(ctx context.Context, _ *hasp.Term) error { return fn(ctx) })
			},
		} {
			err := do(func(ctx context.Context) error {
				if ctx.Value(noteKey{}) != mine {
					t.Errorf("%s: %v", what, ctx.Value(noteKey{}))
				}
				return errNetwork
			})
			wantErr(t, err, errNetwork)
		}
		if l, err := c.Mutex("a").Lock(ctx); err != nil || l.Context().Value(noteKey{}) != mine {
			t.Errorf("%v, %v", l, err)
		}
		evict(t, b, "a")
		synctest.Wait()
		kinds, events := rec.take()
		for _, e := range events {
			if e.Context.Value(noteKey{}) != mine {
				t.Errorf("event %s: %v", e.Kind, e.Context.Value(noteKey{}))
			}
		}
		if !slices.Contains(kinds, hasp.EventLost) || !slices.Contains(kinds, hasp.EventReleased) {
			t.Errorf("events %v", kinds)
		}
	})
}
