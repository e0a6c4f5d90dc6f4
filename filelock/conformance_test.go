//go:build linux || darwin || freebsd

package filelock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/filelock"
	"github.com/hasplock/hasp/internal/testkit"
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
		URL:  "file://" + dir,
		TTL:  time.Second,
		Idle: drivertest.Idle{Observer: 72}, // a directory is read ten times a second
	})
}

// Each waiter is told its place.
func TestPlaces(t *testing.T) {
	b, err := filelock.New(t.Context(), t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	testkit.Places(t, b, 1, 2, 3, 4, 5, 6)
}
