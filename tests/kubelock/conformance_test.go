package kubelock_test

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

// proxied is a backend behind a network that can be cut, and that ends with it.
type proxied struct {
	driver.Backend
	driver.Watcher
	driver.Namer
	driver.Evicter
	driver.Diagnoser
	net *faultnet.Proxy
}

func (p proxied) Close() error {
	defer p.net.Close()
	return p.Backend.Close()
}

func TestConformance(t *testing.T) {
	c := shared(t)
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			net := testkit.Proxy(t, c.Addr)
			b, err := kubelock.New(c.through(net.Addr(), backends.KubeAdmin), &kubelock.Options{Namespace: c.namespace(t, "suite")})
			if err != nil {
				t.Fatal(err)
			}
			return proxied{b, b.(driver.Watcher), b.(driver.Namer), b.(driver.Evicter), b.(driver.Diagnoser), net}
		},
		Counted: func(t testing.TB) (driver.Backend, func() int64) {
			net := testkit.Proxy(t, c.Addr)
			b, err := kubelock.New(c.through(net.Addr(), backends.KubeAdmin), &kubelock.Options{Namespace: c.namespace(t, "suite")})
			if err != nil {
				t.Fatal(err)
			}
			return b, faultnet.Network{net}.Sent
		},
		Gated: func(t testing.TB, gate func(context.Context, string) error) (driver.Backend, func() int64) {
			var sent atomic.Int64
			config := c.config(backends.KubeAdmin)
			config.Wrap(func(next http.RoundTripper) http.RoundTripper {
				return roundTripper(func(r *http.Request) (*http.Response, error) {
					sent.Add(1)
					if r.Method == http.MethodPut || r.Method == http.MethodPost {
						if err := gate(r.Context(), bodyOf(r)); err != nil {
							return nil, err
						}
					}
					return next.RoundTrip(r)
				})
			})
			b, err := kubelock.New(config, &kubelock.Options{Namespace: c.namespace(t, "suite")})
			if err != nil {
				t.Fatal(err)
			}
			return b, sent.Load
		},
		Cut: func(_ testing.TB, b driver.Backend) func() {
			net := b.(proxied).net
			net.Partition()
			return net.Heal
		},
		Reopen: func(t testing.TB) {
			if err := errors.Join(c.Kill(), c.Restart()); err != nil {
				t.Fatal(err)
			}
		},
		URL:      c.url(t, "suite"),
		TTL:      kubelock.MinTTL,
		AtOnce:   200,
		Programs: programs.Harness{Other: func(t testing.TB) driver.Backend { return c.open(t, "other") }}.Run,
	})
}
