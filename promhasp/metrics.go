// Package promhasp counts what a hasp client does, for Prometheus.
//
//	metrics := promhasp.New(promhasp.Options{})
//	prometheus.MustRegister(metrics)
//	client, err := hasp.Open(ctx, url, hasp.WithObserver(metrics))
//
// Lock names are not labels unless [Options].Name makes them so: a name per order would be a
// time series per order, and several of most metrics: every result and every reason of a loss
// is counted from 0 on, so that rate and increase see the first of its kind.
//
// docs/grafana/hasp.json is a dashboard of these metrics. Package otelhasp measures the same
// for OpenTelemetry.
package promhasp

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/metering"
)

// Options are the options of New. The zero value is right for most programs.
type Options struct {
	// Namespace begins every metric's name. Default: "hasp".
	Namespace string

	// Name makes a label of a lock's name, "" to leave it out. Return few different values:
	// strings.Cut(name, "/") gives "orders" for "orders/42". nil: no such label.
	Name func(lock string) string

	// Buckets are those of the histograms of waiting, holding and renewing, in seconds.
	// Default: from 0.5 ms to 5 min.
	Buckets []float64
}

// Metrics is a hasp.Observer and a prometheus.Collector. One may serve any number of clients; a
// label distinguishes their stores. Safe for use by many goroutines.
type Metrics struct {
	name func(string) string

	acquisitions, lost, released, requeued, renewals *prometheus.CounterVec
	wait, hold, renewal                              *prometheus.HistogramVec
	held, margin                                     *prometheus.GaugeVec

	begun sync.Map // label values, joined, for which begin has been called
}

// New makes the metrics. Register them once, and give them to each client with
// hasp.WithObserver.
func New(o Options) *Metrics {
	if o.Namespace == "" {
		o.Namespace = "hasp"
	}
	if o.Buckets == nil {
		o.Buckets = metering.Buckets
	}
	lock := []string{"store"} // of metrics about one lock
	if o.Name != nil {
		lock = append(lock, "name")
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: o.Namespace, Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: o.Namespace, Name: name, Help: help, Buckets: o.Buckets}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: o.Namespace, Name: name, Help: help}, labels)
	}
	with := func(more ...string) []string { return append(lock[:len(lock):len(lock)], more...) }
	return &Metrics{
		name:         o.Name,
		acquisitions: counter("acquisitions_total", "Acquisitions that ended, by result: acquired, busy (a try), failed.", with("result")...),
		released:     counter("releases_total", "Releases, by result: confirmed, unknown, lost.", with("result")...),
		lost:         counter("lost_total", "Leases lost before their release, by reason.", with("reason")...),
		requeued:     counter("requeued_total", "Waiters whose place was lost with their session, and that queued again.", lock...),
		renewals:     counter("renewals_total", "Renewals of sessions, by result: ok, failed.", "store", "result"),
		wait:         histogram("wait_seconds", "How long acquisitions took that got the lock.", lock...),
		hold:         histogram("hold_seconds", "How long locks were held, to their release or loss.", lock...),
		renewal:      histogram("renewal_seconds", "How long renewals took.", "store"),
		held:         gauge("held", "Leases held at the moment.", lock...),
		margin:       gauge("renewal_margin_seconds", "Trust that was left at the end of the last renewal: at 0 the locks are lost.", "store"),
	}
}

func (m *Metrics) all() []prometheus.Collector {
	return []prometheus.Collector{
		m.acquisitions, m.released, m.lost, m.requeued, m.renewals, m.wait, m.hold, m.renewal, m.held, m.margin,
	}
}

// Describe is prometheus.Collector's.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.all() {
		c.Describe(ch)
	}
}

// Collect is prometheus.Collector's.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.all() {
		c.Collect(ch)
	}
}

// begin makes all series of a lock's labels, and of its store's, begin at 0. A counter that comes
// into being with its first event is 1 at Prometheus's first reading, and rate and increase, which
// compare readings, never see that event; but the first loss must trigger an alert.
//
// The goroutine that first sees these labels does it before it counts their first event; a second
// goroutine that counts meanwhile makes the same series, and loses nothing.
func (m *Metrics) begin(store string, lock []string, with func(string) []string) {
	if _, done := m.begun.LoadOrStore(strings.Join(lock, "\x00"), nil); done {
		return
	}
	for _, result := range metering.Acquisitions {
		m.acquisitions.WithLabelValues(with(result)...)
	}
	for _, result := range metering.Releases {
		m.released.WithLabelValues(with(result)...)
	}
	for _, reason := range metering.Losses {
		m.lost.WithLabelValues(with(reason)...)
	}
	m.requeued.WithLabelValues(lock...)
	m.wait.WithLabelValues(lock...)
	m.hold.WithLabelValues(lock...)
	m.held.WithLabelValues(lock...)
	for _, result := range metering.Renewals {
		m.renewals.WithLabelValues(store, result)
	}
	m.renewal.WithLabelValues(store)
}

// Observe is hasp.Observer's.
func (m *Metrics) Observe(e hasp.Event) {
	lock := []string{e.Backend}
	if m.name != nil {
		lock = append(lock, m.name(e.Name))
	}
	with := func(more string) []string { return append(lock[:len(lock):len(lock)], more) }
	if e.Name != "" { // events of the session come after one of a lock that opened it
		m.begin(e.Backend, lock, with)
	}
	outcome := metering.Outcome(e)
	switch e.Kind {
	case hasp.EventAcquired, hasp.EventFailed:
		m.acquisitions.WithLabelValues(with(outcome)...).Inc()
		if e.Kind == hasp.EventAcquired {
			m.wait.WithLabelValues(lock...).Observe(e.Wait.Seconds())
			m.held.WithLabelValues(lock...).Inc()
		}
	case hasp.EventRequeued:
		m.requeued.WithLabelValues(lock...).Inc()
	case hasp.EventReleased, hasp.EventLost:
		ended := m.released
		if e.Kind == hasp.EventLost {
			ended = m.lost
		}
		ended.WithLabelValues(with(outcome)...).Inc()
		m.hold.WithLabelValues(lock...).Observe(e.Hold.Seconds())
		m.held.WithLabelValues(lock...).Dec()
	case hasp.EventRenewed:
		m.renewals.WithLabelValues(e.Backend, outcome).Inc()
		m.renewal.WithLabelValues(e.Backend).Observe(e.Took.Seconds())
		m.margin.WithLabelValues(e.Backend).Set(e.Remaining.Seconds())
	}
}

// Queues reads the queues of some locks whenever Prometheus scrapes: the waiters on all machines,
// not only here. Name the few that matter; each costs a request per scrape.
//
// A queue that cannot be read within timeout (0: 5 s), which bounds all of them together, leaves
// hasp_queue_up at 0 and has no numbers, rather than old ones.
func Queues(c *hasp.Client, timeout time.Duration, names ...string) prometheus.Collector {
	return &queues{client: c, timeout: timeout, names: names}
}

type queues struct {
	client  *hasp.Client
	timeout time.Duration
	names   []string
}

var (
	queueLabels  = []string{"store", "name"}
	queueUp      = prometheus.NewDesc("hasp_queue_up", "1 if the queue could be read.", queueLabels, nil)
	queueHolders = prometheus.NewDesc("hasp_queue_holders", "Entries that hold the lock.", queueLabels, nil)
	queueWaiters = prometheus.NewDesc("hasp_queue_waiters", "Entries that wait for the lock.", queueLabels, nil)
	queueOldest  = prometheus.NewDesc("hasp_queue_oldest_waiter_seconds", "How long the first in line has waited, by its own clock.", queueLabels, nil)
)

// Describe is prometheus.Collector's.
func (q *queues) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{queueUp, queueHolders, queueWaiters, queueOldest} {
		ch <- d
	}
}

// Collect is prometheus.Collector's.
func (q *queues) Collect(ch chan<- prometheus.Metric) {
	store := q.client.Store()
	metering.Lengths(context.Background(), q.client, q.timeout, q.names, func(name string, l metering.Length, err error) {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, store, name)
		}
		if err != nil {
			gauge(queueUp, 0)
			return
		}
		gauge(queueUp, 1)
		gauge(queueHolders, float64(l.Holders))
		gauge(queueWaiters, float64(l.Waiters))
		gauge(queueOldest, l.Oldest.Seconds())
	})
}
