package mysqllock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformance(t *testing.T) { conform(t, conformanceServer(t), 0) }

// Each lock is a connection, and a renewal has to ask all of them in time.
func TestConformanceOthers(t *testing.T) {
	testtier.Long(t)
	base := conformanceServer(t)
	t.Run("GetLock", func(t *testing.T) { conform(t, sqlkit.With(base, "strategy=getlock&connections=1500"), 250) })
}

// conformanceServer does not wait for the disk at each commit, which on a machine with a busy
// disk would be most of the time; what it remembers of a crash is the matter of TestRestart, on
// a server with the defaults.
func conformanceServer(t *testing.T) string {
	if base := sqlkit.OtherMySQL(); base != "" {
		return base
	}
	return sqlkit.MariaDBStore(t, backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
		"max_connections=5000", "innodb_flush_log_at_trx_commit=2"}}))
}

func conform(t *testing.T, storeURL string, atOnce int) {
	drivertest.Run(t, withPrograms(storeURL, drivertest.Harness{
		Open:    func(t testing.TB) driver.Backend { return testkit.Open(t, storeURL) },
		URL:     storeURL,
		TTL:     2 * time.Second, // a commit may take a while on a machine with other work
		AtOnce:  atOnce,
		Counted: testkit.Counted(storeURL),
		// An observer looks every half second, and more often at first. A waiter of a busy machine
		// asks again: the server has ended its wait.
		Idle: drivertest.Idle{Waiter: 72, Observer: 72},
	}))
}
