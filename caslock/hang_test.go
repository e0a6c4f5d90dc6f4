package caslock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
)

// holding has a client hold n locks in fake time, "n0" and so on.
func holding(t *testing.T, ttl time.Duration, n int, watch bool, test func(t *testing.T, h *host, c *hasp.Client, leases []*hasp.Lease)) {
	synctest.Test(t, func(t *testing.T) {
		h := newSimulation(ttl).host("a", watch, faulty{})
		c, _ := h.client(t)
		leases := make([]*hasp.Lease, n)
		for i := range leases {
			var err error
			if leases[i], err = h.lock(t.Context(), c, fmt.Sprint("n", i)); err != nil {
				t.Fatal(err)
			}
		}
		test(t, h, c, leases)
		h.setFate(func(string, string) fate { return fate{} })
		close(h.down)
		c.Close()
		for _, w := range h.wrong {
			t.Error(w)
		}
	})
}

// One name whose requests are never answered takes no other lock of its client: neither an
// acquisition that hangs, nor a held lock that does. The library may not look at contexts.
func TestOneNameHangs(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, watch := range []bool{false, true} {
			for _, name := range []string{"n0", "new"} {
				holding(t, 6*time.Second, 3, watch, func(t *testing.T, h *host, c *hasp.Client, leases []*hasp.Lease) {
					h.setFate(func(op, n string) fate {
						if n == name && op == "swap" {
							return fate{out: never, deaf: deaf}
						}
						return fate{out: 10 * time.Millisecond}
					})
					ctx, cancel := context.WithCancel(t.Context())
					ended := make(chan error, 1)
					go func() { _, err := c.Mutex("new").Lock(ctx); ended <- err }()
					time.Sleep(10 * h.ttl)
					for i, l := range leases {
						if want := fmt.Sprint("n", i) != name; l.Held() != want {
							t.Errorf("deaf %t, watch %t, %s hangs: n%d is held: %t", deaf, watch, name, i, l.Held())
						}
					}
					cancel()
					if err := <-ended; name == "new" && !errors.Is(err, hasp.ErrUnknown) && !errors.Is(err, context.Canceled) {
						t.Errorf("the acquisition that hangs: %v", err)
					}
				})
			}
		}
	}
}

// A call returns with its context, and a client can be closed, where the library hangs in all that
// it is asked.
func TestAllHangs(t *testing.T) {
	for _, watch := range []bool{false, true} {
		holding(t, 10*time.Second, 1, watch, func(t *testing.T, h *host, c *hasp.Client, leases []*hasp.Lease) {
			h.setFate(func(string, string) fate { return fate{out: never, deaf: true} })
			for what, call := range map[string]func(context.Context) error{
				"Lock":    func(ctx context.Context) error { _, err := c.Mutex("new").Lock(ctx); return err },
				"TryLock": func(ctx context.Context) error { _, err := c.Mutex("new").TryLock(ctx); return err },
				"Inspect": func(ctx context.Context) error { _, err := c.Inspect(ctx, "n0"); return err },
				"Names": func(ctx context.Context) error {
					for _, err := range c.Names(ctx, "") {
						return err
					}
					return nil
				},
				"Release": leases[0].Release,
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				began := time.Now()
				if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Second+250*time.Millisecond {
					t.Errorf("%s: %v after %s", what, err, time.Since(began))
				}
				cancel()
			}
		})
	}
}

// A waiter gets a lock soon after the store answers again, though a request before hung.
func TestWaiterAfterHang(t *testing.T) {
	for _, watch := range []bool{false, true} {
		holding(t, 10*time.Second, 1, watch, func(t *testing.T, h *host, c *hasp.Client, leases []*hasp.Lease) {
			other := h.simulation.host("b", watch, faulty{})
			oc, _ := other.client(t)
			defer oc.Close()
			defer close(other.down)
			got := make(chan time.Time, 1)
			go func() {
				if l, err := other.lock(t.Context(), oc, "n0"); err == nil {
					got <- time.Now()
					l.Release(t.Context())
				}
			}()
			time.Sleep(time.Second)
			other.setFate(func(string, string) fate { return fate{out: never} })
			time.Sleep(3 * time.Second)
			leases[0].Release(t.Context())
			time.Sleep(time.Minute)
			other.setFate(func(string, string) fate { return fate{} })
			well := time.Now()
			if took := (<-got).Sub(well); took > h.ttl/2+2*time.Second {
				t.Errorf("watch %t: had %s after the store was well", watch, took)
			}
		})
	}
}

// A name whose writes fail makes no storm of renewals of the others.
func TestRequestsWhileOneFails(t *testing.T) {
	count := func(failing string) (puts int) {
		holding(t, 6*time.Second, 20, true, func(t *testing.T, h *host, c *hasp.Client, leases []*hasp.Lease) {
			h.setFate(func(op, n string) fate {
				if op == "swap" && n == failing {
					return fate{out: 5 * time.Millisecond, back: 0, fails: true}
				}
				return fate{out: 5 * time.Millisecond}
			})
			before := h.writes()
			time.Sleep(10 * time.Second)
			puts = h.writes() - before
			for i, l := range leases {
				if want := fmt.Sprint("n", i) != failing; l.Held() != want {
					t.Errorf("n%d is held: %t", i, l.Held())
				}
			}
		})
		return puts
	}
	control, failing := count("none"), count("n7")
	t.Logf("20 locks for 10 s: %d writes; with one that fails %d", control, failing)
	if failing > 2*control {
		t.Errorf("%d writes while one name fails, %d otherwise", failing, control)
	}
}
