package promhasp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/promhasp"
)

func expect(t *testing.T, c prometheus.Collector, want string, metrics ...string) {
	t.Helper()
	if err := testutil.CollectAndCompare(c, strings.NewReader(want), metrics...); err != nil {
		t.Error(err)
	}
}

// Every kind of event, in fake time, so that all durations are exact.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := promhasp.New(promhasp.Options{Buckets: []float64{1, 5}})
		store := hasptest.New()
		c, other := store.Client(t, hasp.WithObserver(m)), store.Client(t)

		l, err := c.Mutex("orders/1").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		expect(t, m, `
# HELP hasp_held Leases held at the moment.
# TYPE hasp_held gauge
hasp_held{store="mem://"} 1
`, "hasp_held")
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		held, err := other.Mutex("orders/2").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Mutex("orders/2").TryLock(t.Context()); err == nil {
			t.Fatal("not busy")
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if _, err := c.Mutex("orders/2").Lock(short); err == nil {
			t.Fatal("not busy")
		}
		if _, err := c.Mutex("orders/3").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		store.Lose("orders/3")
		expect(t, m, `
# HELP hasp_acquisitions_total Acquisitions that ended, by result: acquired, busy (a try), failed.
# TYPE hasp_acquisitions_total counter
hasp_acquisitions_total{result="acquired",store="mem://"} 2
hasp_acquisitions_total{result="busy",store="mem://"} 1
hasp_acquisitions_total{result="failed",store="mem://"} 1
# HELP hasp_held Leases held at the moment.
# TYPE hasp_held gauge
hasp_held{store="mem://"} 0
# HELP hasp_hold_seconds How long locks were held, to their release or loss.
# TYPE hasp_hold_seconds histogram
hasp_hold_seconds_bucket{store="mem://",le="1"} 0
hasp_hold_seconds_bucket{store="mem://",le="5"} 2
hasp_hold_seconds_bucket{store="mem://",le="+Inf"} 2
hasp_hold_seconds_sum{store="mem://"} 5
hasp_hold_seconds_count{store="mem://"} 2
# HELP hasp_lost_total Leases lost before their release, by reason.
# TYPE hasp_lost_total counter
hasp_lost_total{reason="clock jump",store="mem://"} 0
hasp_lost_total{reason="closed",store="mem://"} 0
hasp_lost_total{reason="denied",store="mem://"} 1
hasp_lost_total{reason="expired",store="mem://"} 0
hasp_lost_total{reason="overdue",store="mem://"} 0
hasp_lost_total{reason="session gone",store="mem://"} 0
hasp_lost_total{reason="stalled",store="mem://"} 0
# HELP hasp_releases_total Releases, by result: confirmed, unknown, lost.
# TYPE hasp_releases_total counter
hasp_releases_total{result="confirmed",store="mem://"} 1
hasp_releases_total{result="lost",store="mem://"} 0
hasp_releases_total{result="unknown",store="mem://"} 0
`, "hasp_acquisitions_total", "hasp_held", "hasp_hold_seconds", "hasp_lost_total", "hasp_releases_total")

		// Two renewals by now. A third fails, and says how much trust is left.
		expect(t, m, `
# HELP hasp_renewals_total Renewals of sessions, by result: ok, failed.
# TYPE hasp_renewals_total counter
hasp_renewals_total{result="failed",store="mem://"} 0
hasp_renewals_total{result="ok",store="mem://"} 2
`, "hasp_renewals_total")
		heal := store.Cut()
		time.Sleep(6 * time.Second)
		heal()
		if n := testutil.CollectAndCount(m, "hasp_renewal_margin_seconds"); n != 1 {
			t.Errorf("%d margins", n)
		}
		if failed := value(t, m, "hasp_renewals_total", "failed"); failed == 0 {
			t.Error("no failed renewal is counted")
		}
		_ = held.Release(t.Context())
	})
}

// value finds the value of the series that has the label value.
func value(t *testing.T, c prometheus.Collector, metric, label string) float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(c)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == metric && l.GetValue() == label {
					return m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return 0
}

// A thousand names make no more series than the label function has values.
func TestCardinality(t *testing.T) {
	for name, options := range map[string]promhasp.Options{
		"none":  {},
		"first": {Name: func(lock string) string { first, _, _ := strings.Cut(lock, "/"); return first }},
	} {
		m := promhasp.New(options)
		c := hasptest.New().Client(t, hasp.WithObserver(m))
		for i := range 1000 {
			l, err := c.Mutex(fmt.Sprintf("%s/%d", []string{"orders", "users"}[i%2], i)).Lock(t.Context())
			if err == nil {
				err = l.Release(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]int{"none": 1, "first": 2}[name]
		for metric, results := range map[string]int{"hasp_acquisitions_total": 3, "hasp_wait_seconds": 1, "hasp_held": 1} {
			if n := testutil.CollectAndCount(m, metric); n != want*results {
				t.Errorf("%s: %d series of %s", name, n, metric)
			}
		}
		if problems, err := testutil.CollectAndLint(m); err != nil || len(problems) != 0 {
			t.Errorf("%v, %v", problems, err)
		}
	}
}

func TestQueues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c, other := store.Client(t), store.Client(t)
		l, err := c.Mutex("deploy").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _, _ = other.Mutex("deploy").Lock(ctx) }()
		time.Sleep(7 * time.Second)
		q := promhasp.Queues(c, time.Second, "deploy", "idle")
		expect(t, q, `
# HELP hasp_queue_holders Entries that hold the lock.
# TYPE hasp_queue_holders gauge
hasp_queue_holders{name="deploy",store="mem://"} 1
hasp_queue_holders{name="idle",store="mem://"} 0
# HELP hasp_queue_oldest_waiter_seconds How long the first in line has waited, by its own clock.
# TYPE hasp_queue_oldest_waiter_seconds gauge
hasp_queue_oldest_waiter_seconds{name="deploy",store="mem://"} 7
hasp_queue_oldest_waiter_seconds{name="idle",store="mem://"} 0
# HELP hasp_queue_up 1 if the queue could be read.
# TYPE hasp_queue_up gauge
hasp_queue_up{name="deploy",store="mem://"} 1
hasp_queue_up{name="idle",store="mem://"} 1
# HELP hasp_queue_waiters Entries that wait for the lock.
# TYPE hasp_queue_waiters gauge
hasp_queue_waiters{name="deploy",store="mem://"} 1
hasp_queue_waiters{name="idle",store="mem://"} 0
`)
		heal := store.Cut()
		expect(t, q, `
# HELP hasp_queue_up 1 if the queue could be read.
# TYPE hasp_queue_up gauge
hasp_queue_up{name="deploy",store="mem://"} 0
hasp_queue_up{name="idle",store="mem://"} 0
`)
		heal()
		cancel()
		_ = l.Release(t.Context())
	})
}

func Example() {
	metrics := promhasp.New(promhasp.Options{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	client, err := hasp.New(hasptest.New().Backend(), hasp.WithObserver(metrics))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	err = client.Do(context.Background(), "orders/42", func(context.Context) error { return nil })
	fmt.Println(err, testutil.CollectAndCount(metrics, "hasp_wait_seconds"))
	// Output: <nil> 1
}
