package otelhasp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	tracing "go.opentelemetry.io/otel/sdk/trace"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/otelhasp"
)

// Every kind of event but one (see TestRequeued), in fake time, so that all durations are
// exact.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reader := measured(t, otelhasp.MetricsOptions{})
		store := hasptest.New()
		c, other := testkit.ClientOn(t, store.Backend(), hasp.WithTTL(6*time.Second), hasp.WithObserver(m)), testkit.ClientOn(t, store.Backend())

		held, err := other.Mutex("orders/1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(700*time.Millisecond, func() { _ = held.Release(context.Background()) })
		l, err := c.Mutex("orders/1").Lock(t.Context()) // waits 0.7 s
		if err != nil {
			t.Fatal(err)
		}
		expect(t, reader, `hasp.held{store=mem://} 1`)
		time.Sleep(3 * time.Second)
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		held, err = other.Mutex("orders/2").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Mutex("orders/2").TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
			t.Fatalf("not busy: %v", err)
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := c.Mutex("orders/2").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("not timed out: %v", err)
		}
		if _, err := c.Mutex("orders/3").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		store.Lose("orders/3")
		synctest.Wait()
		// 7.7 s have passed, and a renewal was made at 2, 4 and 6.
		expect(t, reader, `
hasp.acquisitions{result=acquired,store=mem://} 2
hasp.acquisitions{result=busy,store=mem://} 1
hasp.acquisitions{result=failed,store=mem://} 1
hasp.held{store=mem://} 0
hasp.hold{store=mem://} count 2 sum 5, 1 to 2.5, 1 to 5
hasp.lost{reason=clock jump,store=mem://} 0
hasp.lost{reason=closed,store=mem://} 0
hasp.lost{reason=denied,store=mem://} 1
hasp.lost{reason=expired,store=mem://} 0
hasp.lost{reason=overdue,store=mem://} 0
hasp.lost{reason=session gone,store=mem://} 0
hasp.lost{reason=stalled,store=mem://} 0
hasp.releases{result=confirmed,store=mem://} 1
hasp.releases{result=lost,store=mem://} 0
hasp.releases{result=unknown,store=mem://} 0
hasp.renewal{store=mem://} count 3 sum 0, 3 to 0.0005
hasp.renewals{result=failed,store=mem://} 0
hasp.renewals{result=ok,store=mem://} 3
hasp.wait{store=mem://} count 2 sum 0.7, 1 to 0.0005, 1 to 1
`)
	})
}

// A renewal's time and the margin it leaves: at once nearly everything, late ever less, and
// after it nothing, and the lock is lost.
func TestMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reader := measured(t, otelhasp.MetricsOptions{})
		store := hasptest.New()
		c := testkit.ClientOn(t, store.Backend(), hasp.WithTTL(6*time.Second), hasp.WithObserver(m))
		l, err := c.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := count(t, reader, "hasp.renewal_margin"); n != 0 {
			t.Errorf("%d margins before a renewal", n)
		}
		store.Delay(200 * time.Millisecond)
		time.Sleep(3 * time.Second)
		full := margin(t, reader)
		expect(t, reader, `hasp.renewal{store=mem://} count 1 sum 0.2, 1 to 0.25`)
		heal := store.Cut()
		defer heal()
		time.Sleep(3 * time.Second)
		if late := margin(t, reader); late <= 0 || late >= full {
			t.Errorf("a failed renewal leaves %g s of %g", late, full)
		}
		<-l.Context().Done()
		synctest.Wait()
		expect(t, reader, `
hasp.held{store=mem://} 0
hasp.lost{reason=clock jump,store=mem://} 0
hasp.lost{reason=closed,store=mem://} 0
hasp.lost{reason=denied,store=mem://} 0
hasp.lost{reason=expired,store=mem://} 1
hasp.lost{reason=overdue,store=mem://} 0
hasp.lost{reason=session gone,store=mem://} 0
hasp.lost{reason=stalled,store=mem://} 0
`)
	})
}

func margin(t *testing.T, r sdk.Reader) float64 {
	t.Helper()
	for _, m := range collect(t, r) {
		if m.Name == "hasp.renewal_margin" {
			return m.Data.(metricdata.Gauge[float64]).DataPoints[0].Value
		}
	}
	t.Fatal("there is no margin")
	return 0
}

// A waiter whose session ends while the holder's lasts queues again, and holds in the end.
func TestRequeued(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, reader := measured(t, otelhasp.MetricsOptions{})
		store := hasptest.New()
		c, other := testkit.ClientOn(t, store.Backend(), hasp.WithTTL(3*time.Second), hasp.WithObserver(m)), testkit.ClientOn(t, store.Backend(), hasp.WithTTL(time.Hour))
		first, err := other.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			_, err := c.Mutex("a").Lock(t.Context())
			got <- err
		}()
		time.Sleep(time.Second)
		expect(t, reader, `
hasp.held{store=mem://} 0
hasp.requeued{store=mem://} 0
`)
		heal := store.Cut()
		time.Sleep(4 * time.Second)
		heal()
		time.Sleep(time.Minute) // backs off before it queues again
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		expect(t, reader, `hasp.held{store=mem://} 1`)
		for _, m := range collect(t, reader) { // more than once, if it tried while it was cut off
			if m.Name == "hasp.requeued" && m.Data.(metricdata.Sum[int64]).DataPoints[0].Value == 0 {
				t.Error("no waiter queued again")
			}
		}
	})
}

// A thousand names make no more series than the function has values.
func TestCardinality(t *testing.T) {
	for name, c := range map[string]struct {
		options otelhasp.MetricsOptions
		want    int
	}{
		"none":  {otelhasp.MetricsOptions{}, 1},
		"first": {otelhasp.MetricsOptions{Name: first}, 2},
		"all":   {otelhasp.MetricsOptions{Name: func(lock string) string { return lock }}, 1000}, // the control
	} {
		m, reader := measured(t, c.options)
		locks := testkit.ClientOn(t, hasptest.New().Backend(), hasp.WithObserver(m))
		for i := range 1000 {
			name := fmt.Sprintf("%s/%d", []string{"orders", "users"}[i%2], i)
			if err := locks.Do(t.Context(), name, nothing); err != nil {
				t.Fatal(err)
			}
		}
		for _, metric := range []string{"hasp.wait", "hasp.hold", "hasp.held", "hasp.requeued"} {
			if n := count(t, reader, metric); n != c.want {
				t.Errorf("%s: %d series of %s", name, n, metric)
			}
		}
		if n := count(t, reader, "hasp.renewals"); n != 2 {
			t.Errorf("%s: %d series of a session's metric", name, n)
		}
		if name == "first" {
			expect(t, reader, `
hasp.held{name=orders,store=mem://} 0
hasp.held{name=users,store=mem://} 0
hasp.acquisitions{name=orders,result=acquired,store=mem://} 500
hasp.acquisitions{name=orders,result=busy,store=mem://} 0
hasp.acquisitions{name=orders,result=failed,store=mem://} 0
hasp.acquisitions{name=users,result=acquired,store=mem://} 500
hasp.acquisitions{name=users,result=busy,store=mem://} 0
hasp.acquisitions{name=users,result=failed,store=mem://} 0
`)
		}
	}
}

func nothing(context.Context) error { return nil }

func first(lock string) string {
	before, _, _ := strings.Cut(lock, "/")
	return before
}

// The exemplar of a wait leads to the caller's trace.
func TestExemplar(t *testing.T) {
	m, reader := measured(t, otelhasp.MetricsOptions{})
	c := testkit.ClientOn(t, hasptest.New().Backend(), hasp.WithObserver(m))
	ctx, span := tracing.NewTracerProvider().Tracer("test").Start(t.Context(), "order")
	defer span.End()
	if _, err := c.Mutex("a").Lock(ctx); err != nil {
		t.Fatal(err)
	}
	want := span.SpanContext().TraceID()
	for _, m := range collect(t, reader) {
		if m.Name != "hasp.wait" {
			continue
		}
		exemplars := m.Data.(metricdata.Histogram[float64]).DataPoints[0].Exemplars
		if len(exemplars) != 1 || string(exemplars[0].TraceID) != string(want[:]) {
			t.Errorf("exemplars %v, want one of %s", exemplars, want)
		}
		return
	}
	t.Error("no wait is measured")
}

func ExampleNewMetrics() {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader)) // in earnest: yours, with an exporter
	metrics, err := otelhasp.NewMetrics(otelhasp.MetricsOptions{Provider: provider})
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := hasp.New(hasptest.New().Backend(), hasp.WithObserver(metrics))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	err = client.Do(context.Background(), "orders/42", func(context.Context) error { return nil })
	fmt.Println(err)

	var read metricdata.ResourceMetrics
	_ = reader.Collect(context.Background(), &read)
	for _, m := range read.ScopeMetrics[0].Metrics {
		if waits, ok := m.Data.(metricdata.Histogram[float64]); ok {
			fmt.Println(m.Name, m.Unit, waits.DataPoints[0].Count)
		}
	}
	// Output:
	// <nil>
	// hasp.wait s 1
	// hasp.hold s 1
}
