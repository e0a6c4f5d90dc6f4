package otelhasp_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hasplock/hasp/otelhasp"
)

// measured are metrics, and what reads them.
func measured(t *testing.T, o otelhasp.MetricsOptions) (*otelhasp.Metrics, *sdk.ManualReader) {
	t.Helper()
	reader := sdk.NewManualReader()
	o.Provider = sdk.NewMeterProvider(sdk.WithReader(reader))
	m, err := otelhasp.NewMetrics(o)
	if err != nil {
		t.Fatal(err)
	}
	return m, reader
}

func collect(t *testing.T, r sdk.Reader) []metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	var out []metricdata.Metrics
	for _, s := range all.ScopeMetrics {
		if s.Scope.Name == "github.com/hasplock/hasp/otelhasp" {
			out = append(out, s.Metrics...)
		}
	}
	return out
}

// series are the lines of one metric, a line for each set of attributes.
func series(t *testing.T, m metricdata.Metrics) (lines []string) {
	t.Helper()
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			lines = append(lines, line(m, p.Attributes, fmt.Sprint(p.Value)))
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			lines = append(lines, line(m, p.Attributes, fmt.Sprint(p.Value)))
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			lines = append(lines, line(m, p.Attributes, histogram(p)))
		}
	default:
		t.Fatalf("%s is a %T", m.Name, m.Data)
	}
	return lines
}

// line leaves the prefix of the attributes away: all have it, or the test fails.
func line(m metricdata.Metrics, attributes attribute.Set, value string) string {
	var of []string
	for _, a := range attributes.ToSlice() { // sorted
		of = append(of, strings.TrimPrefix(string(a.Key), "hasp.")+"="+a.Value.String())
	}
	return fmt.Sprintf("%s{%s} %s", m.Name, strings.Join(of, ","), value)
}

// histogram writes those buckets that have something in them.
func histogram(p metricdata.HistogramDataPoint[float64]) string {
	s := fmt.Sprintf("count %d sum %g", p.Count, p.Sum)
	for i, n := range p.BucketCounts {
		if n > 0 && i < len(p.Bounds) {
			s += fmt.Sprintf(", %d to %g", n, p.Bounds[i])
		}
	}
	return s
}

// expect compares what the metrics are now, of those that are named in want.
func expect(t *testing.T, r sdk.Reader, want string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(want), "\n")
	about := func(name string) bool {
		return slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+"{") })
	}
	var got []string
	for _, m := range collect(t, r) {
		if about(m.Name) {
			got = append(got, series(t, m)...)
		}
	}
	slices.Sort(got)
	if slices.Sort(lines); !slices.Equal(got, lines) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
	}
}

// count is how many series there are of the metric.
func count(t *testing.T, r sdk.Reader, metric string) int {
	t.Helper()
	for _, m := range collect(t, r) {
		if m.Name == metric {
			return len(series(t, m))
		}
	}
	return 0
}
