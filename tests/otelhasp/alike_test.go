package otelhasp_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/otelhasp"
	"github.com/hasplock/hasp/promhasp"
)

// Of the same client, promhasp and this package measure the same: translated by Prometheus's
// rules, every name, kind, text, label and value is equal.
func TestAsPromhasp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reader := measured(t, otelhasp.MetricsOptions{Name: first})
		p := promhasp.New(promhasp.Options{Name: first})
		store := hasptest.New()
		c := testkit.ClientOn(t, store.Backend(), hasp.WithTTL(6*time.Second), hasp.WithObserver(m), hasp.WithObserver(p))
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(p, promhasp.Queues(c, time.Second, "orders/1", "idle"))
		if _, err := m.Queues(c, time.Second, "orders/1", "idle"); err != nil {
			t.Fatal(err)
		}
		stop := everything(t, c, store)
		defer stop()

		want := gathered(t, registry)
		var got []string
		for _, m := range collect(t, reader) {
			got = append(got, translated(t, m)...)
		}
		for _, s := range want {
			if !slices.Contains(got, s) {
				t.Errorf("promhasp alone has\n%s", s)
			}
		}
		for _, s := range got {
			if !slices.Contains(want, s) {
				t.Errorf("otelhasp alone has\n%s", s)
			}
		}
		if len(want) < 40 {
			t.Errorf("only %d series are compared", len(want))
		}
	})
}

// everything leaves a lock held and one waiting for it, after one of everything else.
func everything(t *testing.T, c *hasp.Client, store *hasptest.Store) (stop func()) {
	t.Helper()
	lock := func(name string) *hasp.Lease {
		l, err := c.Mutex(name).Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond)
		return l
	}
	if err := lock("users/1").Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	lock("users/2")
	store.Lose("users/2")
	expired := lock("users/3")
	heal := store.Cut()
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := acquire(short, c, "users/4"); err == nil {
		t.Fatal("got a lock from a store that does not answer")
	}
	<-expired.Context().Done()
	heal()
	time.Sleep(time.Minute)
	lock("orders/1")
	if _, err := c.Mutex("orders/1").TryLock(t.Context()); err == nil {
		t.Fatal("not busy")
	}
	store.Delay(40 * time.Millisecond)
	time.Sleep(3 * time.Second)
	store.Delay(0)
	ctx, stop := context.WithCancel(t.Context())
	go func() { _ = acquire(ctx, testkit.ClientOn(t, store.Backend()), "orders/1") }()
	time.Sleep(2 * time.Second)
	return stop
}

func acquire(ctx context.Context, c *hasp.Client, name string) error {
	_, err := c.Mutex(name).Lock(ctx)
	return err
}

// gathered are the series that Prometheus reads. Of histograms, those in which something
// is: OpenTelemetry has none that are empty.
func gathered(t *testing.T, g prometheus.Gatherer) (out []string) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := fmt.Sprintf("%g", m.GetCounter().GetValue()+m.GetGauge().GetValue())
			if h := m.GetHistogram(); h != nil {
				value = fmt.Sprintf("count %d sum %g", h.GetSampleCount(), h.GetSampleSum())
				below := uint64(0)
				for _, b := range h.GetBucket() {
					if n := b.GetCumulativeCount() - below; n > 0 {
						value += fmt.Sprintf(", %d to %g", n, b.GetUpperBound())
					}
					below = b.GetCumulativeCount()
				}
				if h.GetSampleCount() == 0 {
					continue
				}
			}
			out = append(out, fmt.Sprintf("%s{%s} %s (%s: %s)", f.GetName(), strings.Join(labels, ","), value, f.GetType(), f.GetHelp()))
		}
	}
	return out
}

// translated writes the metric's series as Prometheus has them: the unit and _total are
// added to the name, in which dots become underscores.
func translated(t *testing.T, m metricdata.Metrics) (out []string) {
	t.Helper()
	name, kind := strings.ReplaceAll(m.Name, ".", "_"), "GAUGE"
	if m.Unit == "s" {
		name += "_seconds"
	}
	switch data := m.Data.(type) {
	case metricdata.Histogram[float64]:
		kind = "HISTOGRAM"
	case metricdata.Sum[int64]:
		if data.IsMonotonic {
			name, kind = name+"_total", "COUNTER"
		}
	}
	for _, s := range series(t, m) {
		out = append(out, fmt.Sprintf("%s%s (%s: %s)", name, strings.TrimPrefix(s, m.Name), kind, m.Description))
	}
	return out
}
