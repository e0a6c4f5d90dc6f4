package otelhasp

import (
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/metering"
)

// Options are the options of New. The zero value is right for most programs.
type Options struct {
	// Provider makes the spans. Default: the global one.
	Provider trace.TracerProvider

	// Names adds the lock's name to spans, as hasp.name. Off by default: names can identify people
	// and orders, and traces go to many places.
	Names bool
}

// Tracing is a hasp.Observer. Safe for use by many goroutines
// and clients.
type Tracing struct {
	tracer trace.Tracer
	names  bool
}

// New returns a Tracing.
func New(o Options) *Tracing {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	return &Tracing{tracer: o.Provider.Tracer(scope), names: o.Names}
}

// Options are the options with which a client is traced.
func (t *Tracing) Options() []hasp.Option { return []hasp.Option{hasp.WithObserver(t)} }

// acquisition makes the span of an acquisition that has ended. It begins when the caller called.
func (t *Tracing) acquisition(e hasp.Event) {
	attributes := []attribute.KeyValue{
		attribute.Int64("hasp.units", e.Units), attribute.Int64("hasp.capacity", e.Capacity), attribute.String("hasp.store", e.Backend),
	}
	if t.names {
		attributes = append(attributes, attribute.String("hasp.name", e.Name))
	}
	_, span := t.tracer.Start(e.Context, "hasp "+e.Op, trace.WithTimestamp(time.Now().Add(-e.Wait)),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	defer span.End()
	switch {
	case e.Err == nil:
		// As a string: JSON and most viewers lose the last digits of such a number.
		span.SetAttributes(attribute.String("hasp.token", strconv.FormatUint(e.Token, 10)))
	case errors.Is(e.Err, hasp.ErrBusy):
		span.SetAttributes(attribute.Bool("hasp.busy", true)) // an answer, not an error
	default:
		span.RecordError(e.Err)
		span.SetStatus(codes.Error, "not acquired")
	}
}

// Observe is hasp.Observer's: an acquisition that has ended gets a span, and that of its caller is
// told of what happened within it, and of losses.
func (t *Tracing) Observe(e hasp.Event) {
	if e.Context == nil {
		return // of the session, and so of no span
	}
	switch e.Kind {
	case hasp.EventAcquired, hasp.EventFailed:
		t.acquisition(e)
		return
	}
	span := trace.SpanFromContext(e.Context)
	if !span.IsRecording() {
		return
	}
	switch e.Kind {
	case hasp.EventWaiting:
		if e.Err != nil {
			span.RecordError(e.Err)
			return
		}
		span.AddEvent("waiting", trace.WithAttributes(attribute.String("hasp.store", e.Backend), attribute.Int("hasp.place", e.Place)))
	case hasp.EventRequeued:
		span.AddEvent("queued again", trace.WithAttributes(attribute.String("hasp.store", e.Backend)))
	case hasp.EventLost:
		span.AddEvent("lock lost", trace.WithAttributes(
			attribute.String("hasp.store", e.Backend), attribute.String("hasp.reason", metering.Outcome(e)),
			attribute.String("hasp.token", strconv.FormatUint(e.Token, 10))))
	}
}
