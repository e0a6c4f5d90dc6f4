package httplock_test

import (
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

// Through the server a store keeps its promises, with the traits that it has. In make test the
// suite runs in front of the store in memory (cmd/hasp/internal/serve).
func TestConformance(t *testing.T) {
	testtier.Long(t)
	redis := backends.SharedRedis(t)
	conform(t, haspserve.New(t, redis.URL(), "--ttl", conformTTL.String()).URL())
}

func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	for name, store := range map[string]func(*testing.T) string{
		"Etcd":     func(t *testing.T) string { return "etcd://" + backends.SharedEtcd(t).Addr },
		"SetNX":    func(t *testing.T) string { return backends.SharedRedis(t).URL() + "?strategy=setnx" },
		"Postgres": func(t *testing.T) string { return backends.SharedPostgres(t).URL() },
		"MariaDB":  func(t *testing.T) string { return backends.SharedMariaDB(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			s := haspserve.New(t, store(t), "--ttl", conformTTL.String())
			t.Parallel()
			conform(t, s.URL())
		})
	}
}

// conformTTL is also the server's: a store that can forget has one TTL for all.
const conformTTL = 3 * time.Second

func conform(t *testing.T, url string) {
	drivertest.Run(t, drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return testkit.Open(t, url) },
		URL:     url,
		TTL:     conformTTL,
		Counted: testkit.Counted(url),
	})
}
