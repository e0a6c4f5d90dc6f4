// Package otelhasp reports to OpenTelemetry what a hasp client does: by spans, by metrics, or by
// both.
//
//	tracing := otelhasp.New(otelhasp.Options{})
//	metrics, err := otelhasp.NewMetrics(otelhasp.MetricsOptions{})
//	client, err := hasp.Open(ctx, url, append(tracing.Options(), hasp.WithObserver(metrics))...)
//
// # Spans
//
// A span for each acquisition, from the call until it succeeds or fails: a child of the span in the
// caller's context. That the acquisition waits, or queues again, and the loss of the lock are
// events of the caller's span, if that is still being recorded. A waiter's place is hasp.place, 0
// if it is not known.
//
// # Metrics
//
// They are those of package promhasp, under names and units of OpenTelemetry's kind:
//
//	hasp.acquisitions         {acquisition}  that ended; hasp.result: acquired, busy, failed
//	hasp.releases             {release}      hasp.result: confirmed, unknown, lost
//	hasp.lost                 {lease}        lost before their release; hasp.reason: a hasp.Reason
//	hasp.requeued             {waiter}       whose place was lost with their session
//	hasp.wait                 s              histogram: of acquisitions that got the lock
//	hasp.hold                 s              histogram: from there to the release or the loss
//	hasp.held                 {lease}        at the moment
//	hasp.renewals             {renewal}      of sessions; hasp.result: ok, failed
//	hasp.renewal              s              histogram: what renewals took
//	hasp.renewal_margin       s              trust left after the last one: at 0 locks are lost
//	hasp.queue.up             {queue}        1 if the queue could be read
//	hasp.queue.holders        {entry}        that hold the lock
//	hasp.queue.waiters        {entry}        that wait for it
//	hasp.queue.oldest_waiter  s              how long the first in line has waited
//
// All have hasp.store. Those of locks have hasp.name only if [MetricsOptions].Name gives it:
// a name per order would be more than a dozen time series per order, kept until the process
// ends, since every result and every reason of a loss is counted from 0 on; and the SDK's
// limit throws those beyond it together. Those of queues are of the locks that
// [Metrics.Queues] was asked for, by name.
//
// Prometheus's rules translate these names to promhasp's: hasp.wait as hasp_wait_seconds, hasp.lost
// as hasp_lost_total. The labels keep their prefix, since attributes of one process share one
// space: with hasp_store, hasp_result, hasp_reason and hasp_name for the labels in its queries,
// docs/grafana/hasp.json shows them.
//
// A wait, a hold and every count of an acquisition carry the caller's context to the SDK, so
// that its exemplars lead to the trace.
package otelhasp

// scope is the instrumentation scope of all reports.
const scope = "github.com/hasplock/hasp/otelhasp"
