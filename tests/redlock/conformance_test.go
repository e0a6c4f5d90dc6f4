package redlock_test

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	_ "github.com/hasplock/hasp/redislock/redlock"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

// urlOf names the servers.
func urlOf(nodes []*backends.Redis) string {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	return "redlock://" + strings.Join(addrs, ",")
}

// Two seconds, since a renewal has to be answered by three servers out of five that share
// a machine with the tests.
func TestConformance(t *testing.T) {
	nodes := five(t)
	storeURL := urlOf(nodes)
	drivertest.Run(t, withPrograms(nodes, drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL) },
		URL:     storeURL,
		TTL:     T,
		Idle:    drivertest.Idle{Holder: 5 * 36, Waiter: 5 * 36, Observer: 5 * 36}, // of five servers
		Counted: testkit.Counted(storeURL),
	}))
}
