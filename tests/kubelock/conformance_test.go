package kubelock_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/kubelock"
)

func TestConformance(t *testing.T) {
	c := shared(t)
	var nets sync.Map // of each backend
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			net := testkit.Proxy(t, c.Addr)
			b, err := kubelock.New(c.through(net.Addr(), backends.KubeAdmin), &kubelock.Options{Namespace: c.namespace(t, "suite")})
			if err != nil {
				t.Fatal(err)
			}
			nets.Store(b, net)
			t.Cleanup(func() { nets.Delete(b) })
			return b
		},
		Cut: func(_ testing.TB, b driver.Backend) func() {
			net, _ := nets.Load(b)
			net.(*faultnet.Proxy).Partition()
			return net.(*faultnet.Proxy).Heal
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
