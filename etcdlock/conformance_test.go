package etcdlock_test

import (
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformance(t *testing.T) {
	conform(t, backends.SharedEtcd(t))
}

func TestConformanceCluster(t *testing.T) {
	conform(t, backends.SharedEtcdCluster(t).Members...)
}

// The oldest etcd that is promised to work: Debian's.
func TestConformanceOld(t *testing.T) {
	conform(t, backends.StartEtcd(t, backends.EtcdOptions{Old: true}))
}

func conform(t *testing.T, members ...*backends.Etcd) {
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL(members)) },
		URL:  storeURL(members),
		Ops: func() (n int64) {
			for _, m := range members {
				n += total(messages(t, m.Addr))
			}
			return n
		},
	})
}
