package mysqllock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformanceTable(t *testing.T) { conform(t, serverURL(t)) }

func conform(t *testing.T, storeURL string) {
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:  storeURL,
		TTL:  2 * time.Second, // a commit may take a while on a machine with other work
	})
}

// The suite holds a thousand locks at once, each of which has a connection here.
func TestConformanceGetLock(t *testing.T) {
	conform(t, roomyURL(t)+"?strategy=getlock&connections=1500")
}

func TestConformanceRow(t *testing.T) { conform(t, roomyURL(t)+"?strategy=row&connections=1500") }

func roomyURL(t testing.TB) string {
	if u := otherServer(); u != "" {
		return u
	}
	return storeURL(t, backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{"max_connections=5000"}}))
}
