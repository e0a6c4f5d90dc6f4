package etcdlock_test

import (
	"flag"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
)

// These tests wait, for servers and for TTLs, and hardly compute: one for each processor at
// a time, the default, would leave the machine idle. -parallel on the command line wins.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	drivertest.Main(m)
}

// Side by side, but beside nothing else: what else there is to run in parallel waits until
// this has ended, as drivertest.Run demands.
func TestConformance(t *testing.T) {
	t.Run("One", func(t *testing.T) {
		t.Parallel()
		conform(t, backends.SharedEtcd(t))
	})
	t.Run("Three", func(t *testing.T) {
		t.Parallel()
		conform(t, three(t).Members...)
	})
	// The oldest etcd that is promised to work: Debian's 3.4.
	t.Run("Old", func(t *testing.T) {
		t.Parallel()
		conform(t, backends.StartEtcd(t, backends.EtcdOptions{Old: true}))
	})
}

func conform(t *testing.T, members ...*backends.Etcd) {
	drivertest.Run(t, withPrograms(members, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL(members)) },
		URL:  storeURL(members),
		Ops: func() (n int64) {
			for _, m := range members {
				n += total(messages(t, m.Addr))
			}
			return n
		},
	}))
}
