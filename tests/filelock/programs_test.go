//go:build linux || darwin || freebsd

package filelock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/filelock"
)

// Random programs on two directories.
func TestPrograms(t *testing.T) {
	at := func(dir string) func(testing.TB) driver.Backend {
		return func(t testing.TB) driver.Backend {
			b, err := filelock.New(t.Context(), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	dir := t.TempDir()
	programs.Harness{Other: at(dir + "/other")}.Run(t, drivertest.Harness{Open: at(dir + "/store"), TTL: time.Second})
}
