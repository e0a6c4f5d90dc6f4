package httplock_test

import (
	"context"
	"testing"

	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/internal/testkit"
)

func TestMain(m *testing.M) { drivertest.Main(m) }

func ctx(t testing.TB) context.Context { return testkit.Context(t) }
