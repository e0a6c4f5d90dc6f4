package otelhasp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/metering"
)

// MetricsOptions are the options of NewMetrics. The zero value is right for most programs. There is
// no option for histogram buckets, or to leave a metric out: a View of the provider does both.
type MetricsOptions struct {
	// Provider makes the instruments. Default: the global one.
	Provider metric.MeterProvider

	// Name makes an attribute, hasp.name, of a lock's name, "" for one series of all others. Return
	// few different values: strings.Cut(name, "/") gives "orders" for "orders/42". It is called for
	// every event of a lock, by many goroutines. nil: no such attribute.
	Name func(lock string) string
}

// Metrics is a hasp.Observer. One may serve any number of clients; an attribute distinguishes their
// stores. Safe for use by many goroutines.
type Metrics struct {
	meter metric.Meter
	name  func(string) string

	acquisitions, released, lost, requeued, renewals metric.Int64Counter
	wait, hold, renewal                              metric.Float64Histogram

	locks   sync.Map // lockKey → *lock
	margins sync.Map // store, a string → time.Duration, of its last renewal
}

// lockKey distinguishes the series about locks.
type lockKey struct{ store, name string }

// lock holds the measurements under one key.
type lock struct {
	attributes []attribute.KeyValue // clipped, so that no two goroutines append in the same place
	held       atomic.Int64
}

// with are the attributes of a measurement, and one more.
func (l *lock) with(key, value string) metric.MeasurementOption {
	return metric.WithAttributes(append(l.attributes, attribute.String(key, value))...)
}

func (l *lock) all() metric.MeasurementOption { return metric.WithAttributes(l.attributes...) }

func ofStore(store string) attribute.KeyValue { return attribute.String("hasp.store", store) }

// NewMetrics makes the instruments. Call it once for a provider, for the provider's lifetime, and
// give the result to each client with hasp.WithObserver. The error is the provider's, and may come
// from one of its Views: then nothing is measured.
func NewMetrics(o MetricsOptions) (*Metrics, error) {
	if o.Provider == nil {
		o.Provider = otel.GetMeterProvider()
	}
	m := &Metrics{meter: o.Provider.Meter(scope), name: o.Name}
	var errs []error
	counter := func(name, unit, help string) metric.Int64Counter {
		c, err := m.meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return c
	}
	histogram := func(name, help string) metric.Float64Histogram {
		h, err := m.meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(help),
			metric.WithExplicitBucketBoundaries(metering.Buckets...)) // the SDK's own are of milliseconds
		errs = append(errs, err)
		return h
	}
	m.acquisitions = counter("hasp.acquisitions", "{acquisition}", "Acquisitions that ended, by result: acquired, busy (a try), failed.")
	m.released = counter("hasp.releases", "{release}", "Releases, by result: confirmed, unknown, lost.")
	m.lost = counter("hasp.lost", "{lease}", "Leases lost before their release, by reason.")
	m.requeued = counter("hasp.requeued", "{waiter}", "Waiters whose place was lost with their session, and that queued again.")
	m.renewals = counter("hasp.renewals", "{renewal}", "Renewals of sessions, by result: ok, failed.")
	m.wait = histogram("hasp.wait", "How long acquisitions took that got the lock.")
	m.hold = histogram("hasp.hold", "How long locks were held, to their release or loss.")
	m.renewal = histogram("hasp.renewal", "How long renewals took.")
	if err := errors.Join(append(errs, m.observable())...); err != nil {
		return nil, fmt.Errorf("otelhasp: making the instruments: %w", err)
	}
	return m, nil
}

// observable makes the two metrics that are read on demand: the held leases, and the margin.
//
// They could also be recorded at each event, but the API lets a program set its provider after it
// has opened its clients, and drops the earlier measurements. Then a counter is too low, as every
// counter is; but a lease that was taken before and released after would count as -1 for ever. And
// with an exporter of deltas, a margin that is recorded at each renewal is missing from every
// reading between two renewals.
func (m *Metrics) observable() error {
	// Held is a sum, not a gauge: the sum over all stores, processes and names has a meaning.
	held, err := m.meter.Int64ObservableUpDownCounter("hasp.held", metric.WithUnit("{lease}"),
		metric.WithDescription("Leases held at the moment."))
	margin, err2 := m.meter.Float64ObservableGauge("hasp.renewal_margin", metric.WithUnit("s"),
		metric.WithDescription("Trust that was left at the end of the last renewal: at 0 the locks are lost."))
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	_, err = m.meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, l := range m.locks.Range {
			to.ObserveInt64(held, l.(*lock).held.Load(), l.(*lock).all())
		}
		for store, d := range m.margins.Range {
			to.ObserveFloat64(margin, d.(time.Duration).Seconds(), metric.WithAttributes(ofStore(store.(string))))
		}
		return nil
	}, held, margin)
	return err
}

// lock returns the measurements for the event's lock. The first event of a key makes its counters,
// and those of its store, begin at 0.
//
// OpenTelemetry itself does not need that: a counter's every reading says since when it counts, so
// that a first value of 1 is an increase. But Prometheus, where many of them end, does not look at
// that by default: it compares readings, and a counter that comes into being with its first event
// never shows it. And the first loss must trigger an alert. A histogram cannot begin like this: it
// cannot record an empty value.
//
// Another goroutine that counts meanwhile makes the same series, and loses nothing.
func (m *Metrics) lock(e hasp.Event) *lock {
	key := lockKey{store: e.Backend}
	attributes := []attribute.KeyValue{ofStore(e.Backend)}
	if m.name != nil {
		key.name = m.name(e.Name)
		attributes = append(attributes, attribute.String("hasp.name", key.name))
	}
	if have, ok := m.locks.Load(key); ok {
		return have.(*lock)
	}
	l := &lock{attributes: slices.Clip(attributes)}
	if have, loaded := m.locks.LoadOrStore(key, l); loaded { // otherwise the records under the other value would be lost
		return have.(*lock)
	}
	ctx := context.Background()
	for _, result := range metering.Acquisitions {
		m.acquisitions.Add(ctx, 0, l.with("hasp.result", result))
	}
	for _, result := range metering.Releases {
		m.released.Add(ctx, 0, l.with("hasp.result", result))
	}
	for _, reason := range metering.Losses {
		m.lost.Add(ctx, 0, l.with("hasp.reason", reason))
	}
	m.requeued.Add(ctx, 0, l.all())
	for _, result := range metering.Renewals {
		m.renewals.Add(ctx, 0, ofRenewal(e.Backend, result))
	}
	return l
}

func ofRenewal(store, result string) metric.MeasurementOption {
	return metric.WithAttributes(ofStore(store), attribute.String("hasp.result", result))
}

// Observe is hasp.Observer's.
func (m *Metrics) Observe(e hasp.Event) {
	if e.Kind == hasp.EventRenewed {
		m.renewed(e)
		return
	}
	if e.Kind == hasp.EventWarning {
		return // of no lock
	}
	ctx, l, outcome := e.Context, m.lock(e), metering.Outcome(e)
	switch e.Kind {
	case hasp.EventAcquired:
		m.wait.Record(ctx, e.Wait.Seconds(), l.all())
		l.held.Add(1)
		fallthrough
	case hasp.EventFailed:
		m.acquisitions.Add(ctx, 1, l.with("hasp.result", outcome))
	case hasp.EventRequeued:
		m.requeued.Add(ctx, 1, l.all())
	case hasp.EventReleased:
		m.released.Add(ctx, 1, l.with("hasp.result", outcome))
		m.ended(e, l)
	case hasp.EventLost:
		m.lost.Add(ctx, 1, l.with("hasp.reason", outcome))
		m.ended(e, l)
	}
}

// ended counts the end of a lease, of any kind.
func (m *Metrics) ended(e hasp.Event, l *lock) {
	m.hold.Record(e.Context, e.Hold.Seconds(), l.all())
	l.held.Add(-1)
}

// renewed counts a renewal of a session, or an attempt at one.
func (m *Metrics) renewed(e hasp.Event) {
	ctx := context.Background() // no caller, and so no trace
	m.renewals.Add(ctx, 1, ofRenewal(e.Backend, metering.Outcome(e)))
	m.renewal.Record(ctx, e.Took.Seconds(), metric.WithAttributes(ofStore(e.Backend)))
	m.margins.Store(e.Backend, e.Remaining)
}

// Queues reads the queues of some locks whenever metrics are collected: the waiters on all
// machines, not only here. Name the few that matter; each costs a request per collection, and is in
// the attribute hasp.name. Unregister the result before closing the client.
//
// A queue that cannot be read within timeout (0: 5 s), which bounds all of them together, leaves
// hasp.queue.up at 0 and has no numbers, rather than old ones. Other metrics are collected after
// it: keep it shorter than the reader's own timeout.
//
// All are gauges: every process that reads a queue reports the same one, so that the sum over
// processes would be wrong. The error is the provider's, as NewMetrics' is.
func (m *Metrics) Queues(c *hasp.Client, timeout time.Duration, names ...string) (metric.Registration, error) {
	var errs []error
	gauge := func(name, unit, help string) metric.Float64ObservableGauge {
		g, err := m.meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(help))
		errs = append(errs, err)
		return g
	}
	up := gauge("hasp.queue.up", "{queue}", "1 if the queue could be read.")
	holders := gauge("hasp.queue.holders", "{entry}", "Entries that hold the lock.")
	waiters := gauge("hasp.queue.waiters", "{entry}", "Entries that wait for the lock.")
	oldest := gauge("hasp.queue.oldest_waiter", "s", "How long the first in line has waited, by its own clock.")
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("otelhasp: making the queues' instruments: %w", err)
	}
	store := ofStore(c.Store())
	read := func(ctx context.Context, to metric.Observer) error {
		metering.Lengths(ctx, c, timeout, names, func(name string, l metering.Length, err error) {
			of := metric.WithAttributes(store, attribute.String("hasp.name", name))
			if err != nil {
				// The metric up reports this error. It is not returned: that would add an entry to
				// the program's log at each collection, with no further information.
				to.ObserveFloat64(up, 0, of)
				return
			}
			to.ObserveFloat64(up, 1, of)
			to.ObserveFloat64(holders, float64(l.Holders), of)
			to.ObserveFloat64(waiters, float64(l.Waiters), of)
			to.ObserveFloat64(oldest, l.Oldest.Seconds(), of)
		})
		return nil
	}
	return m.meter.RegisterCallback(read, up, holders, waiters, oldest)
}
