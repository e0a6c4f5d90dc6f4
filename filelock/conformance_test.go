//go:build linux || darwin || freebsd

package filelock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/filelock"
)

func TestConformance(t *testing.T) {
	dir := t.TempDir() + "/store"
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend {
			b, err := filelock.New(t.Context(), dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		URL: "file://" + dir,
		TTL: time.Second,
	})
}
