package mysqllock_test

import (
	"flag"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/backends"
)

// These tests wait, for the server and for TTLs, and hardly compute: one for each processor at
// a time, the default, would leave the machine idle. -parallel on the command line wins.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	drivertest.Main(m)
}

// One after the other: with two of the strategies each lock is a connection, and a renewal has
// to ask all of them in time.
//
// The server does not wait for the disk at each commit, which on a machine with a busy disk
// would be most of the time; what it remembers of a crash is the matter of TestRestart, on a
// server with the defaults.
func TestConformance(t *testing.T) {
	base := otherServer()
	if base == "" {
		base = storeURL(t, backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
			"max_connections=5000", "innodb_flush_log_at_trx_commit=2"}}))
	}
	t.Run("Table", func(t *testing.T) { conform(t, base, 0) })
	for name, params := range map[string]string{"GetLock": "strategy=getlock", "Row": "strategy=row"} {
		t.Run(name, func(t *testing.T) { conform(t, param(base, params+"&connections=1500"), 250) })
	}
}

func conform(t *testing.T, storeURL string, atOnce int) {
	drivertest.Run(t, withPrograms(storeURL, drivertest.Harness{
		Open:   func(t testing.TB) driver.Backend { return open(t, storeURL) },
		URL:    storeURL,
		TTL:    2 * time.Second, // a commit may take a while on a machine with other work
		AtOnce: atOnce,
	}))
}
