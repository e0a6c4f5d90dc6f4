package promhasp

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hasplock/hasp"
)

// Options set what is counted. The zero value is right for most.
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

var defaultBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// Metrics is a hasp.Observer and a prometheus.Collector. One may serve any number of
// clients; their stores are told apart by a label. Safe for use by many goroutines.
type Metrics struct {
	name func(string) string

	acquisitions, lost, released, requeued, renewals *prometheus.CounterVec
	wait, hold, renewal                              *prometheus.HistogramVec
	held, margin                                     *prometheus.GaugeVec
}

// New makes the metrics. Register them once, and give them to each client with
// hasp.WithObserver.
func New(o Options) *Metrics {
	if o.Namespace == "" {
		o.Namespace = "hasp"
	}
	if o.Buckets == nil {
		o.Buckets = defaultBuckets
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
		requeued:     counter("requeued_total", "Waiters whose place was lost with their session, and who queued again.", lock...),
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

// Observe is hasp.Observer's.
func (m *Metrics) Observe(e hasp.Event) {
	lock := []string{e.Backend}
	if m.name != nil {
		lock = append(lock, m.name(e.Name))
	}
	with := func(more string) []string { return append(lock[:len(lock):len(lock)], more) }
	switch e.Kind {
	case hasp.Acquired:
		m.acquisitions.WithLabelValues(with("acquired")...).Inc()
		m.wait.WithLabelValues(lock...).Observe(e.Wait.Seconds())
		m.held.WithLabelValues(lock...).Inc()
	case hasp.Busy:
		m.acquisitions.WithLabelValues(with("busy")...).Inc()
	case hasp.Failed:
		m.acquisitions.WithLabelValues(with("failed")...).Inc()
	case hasp.Requeued:
		m.requeued.WithLabelValues(lock...).Inc()
	case hasp.Released:
		m.released.WithLabelValues(with(released(e.Err))...).Inc()
		m.hold.WithLabelValues(lock...).Observe(e.Hold.Seconds())
		m.held.WithLabelValues(lock...).Dec()
	case hasp.Lost:
		m.lost.WithLabelValues(with(reason(e.Err))...).Inc()
		m.hold.WithLabelValues(lock...).Observe(e.Hold.Seconds())
		m.held.WithLabelValues(lock...).Dec()
	case hasp.Renewed, hasp.RenewFailed:
		result := "ok"
		if e.Kind == hasp.RenewFailed {
			result = "failed"
		}
		m.renewals.WithLabelValues(e.Backend, result).Inc()
		m.renewal.WithLabelValues(e.Backend).Observe(e.Took.Seconds())
		m.margin.WithLabelValues(e.Backend).Set(e.Margin.Seconds())
	}
}

func released(err error) string {
	switch {
	case err == nil:
		return "confirmed"
	case errors.Is(err, hasp.ErrLost):
		return "lost"
	}
	return "unknown"
}

func reason(err error) string {
	var lost *hasp.LostError
	if errors.As(err, &lost) {
		return string(lost.Reason)
	}
	return "unknown"
}
