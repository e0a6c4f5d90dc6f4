package otelhasp

import (
	"context"
	"errors"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/metering"
)

// Options are the options of New. The zero value is right for most programs.
type Options struct {
	// Provider makes the spans. Default: the global one.
	Provider trace.TracerProvider

	// Names adds the lock's name to spans, as hasp.name. Off by default: names can identify people
	// and orders, and traces go to many places.
	Names bool
}

// Tracing is a hasp.Observer and a middleware. Use both together. Safe for use by many goroutines
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
func (t *Tracing) Options() []hasp.Option {
	return []hasp.Option{hasp.WithMiddleware(t.middleware), hasp.WithObserver(t)}
}

func (t *Tracing) middleware(next hasp.Acquirer) hasp.Acquirer {
	return hasp.AcquirerFunc(func(ctx context.Context, r *hasp.Request) (*hasp.Lease, error) {
		attributes := []attribute.KeyValue{
			attribute.Int64("hasp.units", r.Units()), attribute.Int64("hasp.capacity", r.Capacity()),
		}
		if t.names {
			attributes = append(attributes, attribute.String("hasp.name", r.Name()))
		}
		work, span := t.tracer.Start(ctx, "hasp "+r.Op(),
			trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
		defer span.End()
		l, err := next.Acquire(work, r)
		switch {
		case err == nil:
			// As a string: JSON and most viewers lose the last digits of such a number.
			span.SetAttributes(attribute.String("hasp.token", strconv.FormatUint(l.Token(), 10)))
		case errors.Is(err, hasp.ErrBusy):
			span.SetAttributes(attribute.Bool("hasp.busy", true)) // an answer, not an error
		default:
			span.RecordError(err)
			span.SetStatus(codes.Error, "not acquired")
		}
		return l, err
	})
}

// Observe is hasp.Observer's: what happens within an acquisition, and losses.
func (t *Tracing) Observe(e hasp.Event) {
	if e.Context == nil {
		return // of the session, and so of no span
	}
	span := trace.SpanFromContext(e.Context)
	if !span.IsRecording() {
		return
	}
	switch e.Kind {
	case hasp.EventWaiting:
		span.AddEvent("waiting", trace.WithAttributes(attribute.String("hasp.store", e.Backend)))
	case hasp.EventRequeued:
		span.AddEvent("queued again", trace.WithAttributes(attribute.String("hasp.store", e.Backend)))
	case hasp.EventLost:
		span.AddEvent("lock lost", trace.WithAttributes(
			attribute.String("hasp.store", e.Backend), attribute.String("hasp.reason", metering.Outcome(e)),
			attribute.String("hasp.token", strconv.FormatUint(e.Token, 10))))
	}
}
