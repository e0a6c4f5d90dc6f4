package httplock_test

import (
	"context"
	"os"
	"testing"

	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(floorVariable) != "" {
		floor()
		return
	}
	drivertest.Main(m)
}

func ctx(t testing.TB) context.Context { return testkit.Context(t) }
