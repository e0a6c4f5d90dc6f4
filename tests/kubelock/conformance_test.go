package kubelock_test

import (
	"errors"
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
