package httplock_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	_ "github.com/hasplock/hasp/httplock"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// Through the server a store keeps its promises, with the traits that it has. In make test the suite runs in front
// of the store in memory (cmd/hasp/internal/serve).
func TestConformance(t *testing.T) {
	testtier.Long(t)
	redis := backends.SharedRedis(t)
	conform(t, haspserve.New(t, redis.URL()).URL())
}

// Each request comes to another of two servers than the one before, and they pass on what is not their own.
func TestConformanceInTurns(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	both := haspserve.Peers(t, backends.SharedRedis(t).URL(), 2)
	front := &balancer{}
	front.lead(both[0].Addr, both[1].Addr)
	proxy := httptest.NewServer(front)
	t.Cleanup(proxy.Close)
	conform(t, "hasp+"+proxy.URL)
}

func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	for name, store := range map[string]func(*testing.T) string{
		"Etcd":  func(t *testing.T) string { return "etcd://" + backends.SharedEtcd(t).Addr },
		"SetNX": func(t *testing.T) string { return backends.SharedRedis(t).URL() + "?strategy=setnx" },
	} {
		t.Run(name, func(t *testing.T) {
			s := haspserve.New(t, store(t))
			t.Parallel()
			conform(t, s.URL())
		})
	}
}

func conform(t *testing.T, url string) {
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return testkit.Open(t, url) },
		URL:  url,
		TTL:  3 * time.Second,
	})
}
