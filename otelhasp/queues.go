package otelhasp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/metering"
)

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
	store := ofStore(c.Backend().String())
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
