package sqlitelock_test

import (
	"path/filepath"
	"testing"
	"time"

	sqlitelock "github.com/hasplock/hasp/examples/driver"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func TestConformance(t *testing.T) {
	url := func(file string) string { return "sqlite://" + filepath.ToSlash(filepath.Join(t.TempDir(), file)) }
	open := func(url string) func(testing.TB) driver.Backend {
		return func(t testing.TB) driver.Backend {
			b, err := sqlitelock.Open(t.Context(), url)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	store := url("locks.db")
	drivertest.Run(t, drivertest.Harness{
		Open: open(store),
		URL:  store,
		TTL:  time.Second,
		Reopen: func(testing.TB) {
			// Nothing to restart: the file is the store. What survives is tested all the same.
		},
		Programs: programs.Harness{Other: open(url("other.db"))}.Run,
	})
}
