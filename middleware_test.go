package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hasplock/hasp"
)

var errPolicy = errors.New("orders only")

func TestMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		trace := func(next hasp.Acquirer) hasp.Acquirer {
			return hasp.AcquirerFunc(func(ctx context.Context, r *hasp.Request) (*hasp.Lease, error) {
				seen = append(seen, fmt.Sprintf("%s %s %d/%d %t", r.Op(), r.Name(), r.Units(), r.Capacity(), r.NoWait()))
				return next.Acquire(ctx, r)
			})
		}
		only := func(next hasp.Acquirer) hasp.Acquirer {
			return hasp.AcquirerFunc(func(ctx context.Context, r *hasp.Request) (*hasp.Lease, error) {
				if !strings.HasPrefix(r.Name(), "orders/") {
					return nil, errPolicy
				}
				return next.Acquire(ctx, r)
			})
		}
		b, c, _ := pair(t, hasp.WithMiddleware(trace, only))
		_, err := c.Mutex("a").Lock(t.Context())
		wantErr(t, err, errPolicy)
		if !strings.Contains(err.Error(), `lock "a"`) || b.opens.Load() != 0 {
			t.Errorf("%v, and %d sessions", err, b.opens.Load())
		}
		l := lock(t, c, "orders/1")
		if !l.Held() {
			t.Error("not held")
		}
		if _, err := c.Semaphore("orders/2", 3).TryAcquire(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		want := []string{"lock a 2147483647/2147483647 false", "lock orders/1 2147483647/2147483647 false", "try to acquire orders/2 2/3 true"}
		if !slices.Equal(seen, want) {
			t.Errorf("seen %q", seen)
		}
	})
}

// A middleware that breaks its contract is found out, not trusted.
func TestBadMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c, _ := pair(t, hasp.WithMiddleware(func(hasp.Acquirer) hasp.Acquirer {
			return hasp.AcquirerFunc(func(context.Context, *hasp.Request) (*hasp.Lease, error) { return nil, nil })
		}))
		if l, err := c.Mutex("a").Lock(t.Context()); l != nil || err == nil {
			t.Errorf("%v, %v", l, err)
		}
	})
}
