package etcdlock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformance(t *testing.T) { conform(t, backends.SharedEtcd(t)) }

// Side by side, but beside nothing else: what else there is to run in parallel waits until
// this has ended, as drivertest.Run demands. All servers run before the first of them begins:
// their connections would look like leaks.
func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	t.Run("Three", func(t *testing.T) {
		c := three(t)
		t.Parallel()
		conform(t, c.Members...)
	})
	// The oldest etcd that is promised to work: Debian's 3.4.
	t.Run("Old", func(t *testing.T) {
		old := backends.StartEtcd(t, backends.EtcdOptions{Old: true})
		t.Parallel()
		conform(t, old)
	})
	// All promises hold behind `etcd grpc-proxy`. It answers a renewal within half a second.
	t.Run("Proxy", func(t *testing.T) {
		server := backends.StartEtcd(t, backends.EtcdOptions{})
		proxy := backends.StartEtcdProxy(t, backends.EtcdOptions{}, server)
		t.Parallel()
		h := harness(t, server)
		h.URL, h.TTL = storeURL([]*backends.Etcd{proxy}), proxiedTTL
		h.Open = func(t testing.TB) driver.Backend { return testkit.Open(t, h.URL) }
		drivertest.Run(t, h)
	})
}

const proxiedTTL = 5 * time.Second

func conform(t *testing.T, members ...*backends.Etcd) {
	drivertest.Run(t, withPrograms(members, harness(t, members...)))
}

func harness(t *testing.T, members ...*backends.Etcd) drivertest.Harness {
	return drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL(members)) },
		URL:     storeURL(members),
		Counted: testkit.Counted(storeURL(members)),
		Idle:    drivertest.Idle{Client: 72, Holder: 72, Waiter: 72}, // gRPC takes two or three packets a request
		Ops: func() (n int64) {
			for _, m := range members {
				n += total(messages(t, m.Addr))
			}
			return n
		},
	}
}

// The next one is told so: the answer has the entry that is directly ahead, and whether it is alone.
func TestPlaces(t *testing.T) {
	t.Parallel()
	testkit.Places(t, testkit.Open(t, storeURL([]*backends.Etcd{backends.SharedEtcd(t)})), 1, 0)
}
