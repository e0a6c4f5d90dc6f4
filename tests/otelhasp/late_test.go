package otelhasp_test

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"

	"go.opentelemetry.io/otel"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
	"github.com/hasplock/hasp/otelhasp"
)

// A program that sets its provider after it has opened its client, and after a lock was taken, sees
// the held locks. It is a separate process: the global provider can be set once.
func TestLateProvider(t *testing.T) {
	const late = "OTELHASP_TEST_LATE"
	if os.Getenv(late) == "" {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLateProvider$", "-test.v")
		child.Env = append(os.Environ(), late+"=1")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	m, err := otelhasp.NewMetrics(otelhasp.MetricsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The control: counted at each event, as Metrics does not.
	naive, err := otel.Meter("naive").Int64UpDownCounter("held")
	if err != nil {
		t.Fatal(err)
	}
	c := testkit.ClientOn(t, memlock.New().Backend(), hasp.WithObserver(m))
	before, err := c.Mutex("before").Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	naive.Add(t.Context(), 1)

	reader := sdk.NewManualReader()
	otel.SetMeterProvider(sdk.NewMeterProvider(sdk.WithReader(reader)))
	expect(t, reader, `hasp.held{store=mem://} 1`)
	if err := before.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	naive.Add(t.Context(), -1)
	expect(t, reader, `hasp.held{store=mem://} 0`)
	if n := held(t, reader, "naive"); n != -1 {
		t.Errorf("the control counts %d: then Metrics need not be as it is", n)
	}
}

// held is the one value of the metric of that name in the scope.
func held(t *testing.T, r sdk.Reader, scope string) int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all.ScopeMetrics, func(s metricdata.ScopeMetrics) bool { return s.Scope.Name == scope })
	if i < 0 {
		t.Fatalf("nothing in scope %s", scope)
	}
	return all.ScopeMetrics[i].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints[0].Value
}
