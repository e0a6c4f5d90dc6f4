package httplock_test

import (
	"math/rand/v2"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// Random programs through two servers of one store. Now and then all clients come to the other
// server, or theirs is killed and started anew: what they hold goes with them.
func TestPrograms(t *testing.T) {
	t.Run("Queue", func(t *testing.T) { runPrograms(t, "") })
	t.Run("SetNX", func(t *testing.T) { runPrograms(t, "strategy=setnx") }) // no tokens: a lock that has moved is known by its entry alone
}

func runPrograms(t *testing.T, params string) {
	redis := backends.SharedRedis(t)
	storeURL := redis.URL() + "?" + params
	servers := []*haspserve.Server{haspserve.New(t, storeURL), haspserve.New(t, storeURL)}
	front := &balancer{}
	front.lead(servers[0].Addr)
	proxy := httptest.NewServer(front)
	t.Cleanup(proxy.Close)
	var changing sync.RWMutex // a server that is killed cannot be opened
	at := 0
	open := func(t testing.TB) driver.Backend {
		changing.RLock()
		defer changing.RUnlock()
		return testkit.Open(t, "hasp+"+proxy.URL)
	}
	p := programs.Harness{
		AtOnce: 16,
		Other:  func(t testing.TB) driver.Backend { return testkit.Open(t, redis.URL()+"?prefix=other:&"+params) },
		Proxied: func(t testing.TB) (driver.Backend, programs.Network) {
			changing.RLock()
			defer changing.RUnlock()
			return testkit.Proxied(t, "hasp+"+proxy.URL)
		},
		Disturb: func(testing.TB) func() {
			changing.Lock()
			defer changing.Unlock()
			from := servers[at]
			at = 1 - at
			front.lead(servers[at].Addr)
			if rand.IntN(3) == 0 {
				from.Kill()
				from.Start()
			}
			return func() {}
		},
	}
	p.Run(t, drivertest.Harness{Open: open, TTL: faultTTL})
	if programs.Asked() {
		t.Logf("%d locks have passed from one server to the other", front.adopted.Load())
	}
}
