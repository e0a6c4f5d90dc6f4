package otelhasp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/otelhasp"
)

// traced is a client whose spans are kept, and a tracer for spans of the caller's own.
func traced(t *testing.T, s *hasptest.Store, o otelhasp.Options) (*hasp.Client, *tracetest.SpanRecorder, trace.Tracer) {
	t.Helper()
	spans, provider := recorded()
	o.Provider = provider
	return testkit.ClientOn(t, s.Backend(), otelhasp.New(o).Options()...), spans, provider.Tracer("test")
}

// recorded is a provider whose spans are kept.
func recorded() (*tracetest.SpanRecorder, trace.TracerProvider) {
	spans := tracetest.NewSpanRecorder()
	return spans, sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
}

func events(s sdk.ReadOnlySpan) (names []string) {
	for _, e := range s.Events() {
		names = append(names, e.Name)
	}
	return names
}

func valueOf(s sdk.ReadOnlySpan, key string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// The span lasts as long as the acquisition, and is a child of the caller's, which is told of the
// waiting when it began; the work under the lock is the caller's child, too.
func TestSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c, spans, tracer := traced(t, store, otelhasp.Options{Names: true})
		other, _, _ := traced(t, store, otelhasp.Options{})
		first, err := other.Mutex("a").Lock(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(3*time.Second, func() { _ = first.Release(context.Background()) })

		ctx, parent := tracer.Start(t.Context(), "order")
		began := time.Now()
		l, err := c.Mutex("a").Lock(ctx)
		if err != nil {
			t.Fatal(err)
		}
		ended := spans.Ended()
		if len(ended) != 1 {
			t.Fatalf("%d spans", len(ended))
		}
		s := ended[0]
		if s.Name() != "hasp lock" || s.EndTime().Sub(s.StartTime()) != 3*time.Second || s.Parent().SpanID() != parent.SpanContext().SpanID() {
			t.Errorf("span %q of %s below %s", s.Name(), s.EndTime().Sub(s.StartTime()), s.Parent().SpanID())
		}
		if !s.StartTime().Equal(began) || len(s.Events()) != 0 {
			t.Errorf("since %s, events %v", s.StartTime(), s.Events())
		}
		if valueOf(s, "hasp.name") != "a" || valueOf(s, "hasp.token") != fmt.Sprint(l.Token()) {
			t.Errorf("attributes %v", s.Attributes())
		}
		if got := trace.SpanFromContext(l.Context()); got != parent {
			t.Error("the work under the lock belongs to another span than its caller's")
		}
		store.Lose("a")
		parent.End()
		lost := spans.Ended()[1]
		if !slices.Equal(events(lost), []string{"waiting", "lock lost"}) || !lost.Events()[0].Time.Equal(began) {
			t.Errorf("events of the caller's span: %v", lost.Events())
		}
		if !slices.Contains(lost.Events()[0].Attributes, attribute.Int("hasp.place", 1)) {
			t.Errorf("a waiter's event without its place: %v", lost.Events()[0].Attributes)
		}
	})
}

// A busy try is an answer; a failure is an error. No name unless it was asked for.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := hasptest.New()
		c, spans, _ := traced(t, store, otelhasp.Options{})
		if _, err := c.Mutex("a").Lock(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := c.Mutex("a").TryLock(t.Context())
		if !errors.Is(err, hasp.ErrBusy) {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Mutex("a").Lock(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		ended := spans.Ended()
		if len(ended) != 3 {
			t.Fatalf("%d spans", len(ended))
		}
		busy, failed := ended[1], ended[2]
		if busy.Name() != "hasp try lock" || busy.Status().Code == codes.Error || valueOf(busy, "hasp.busy") != "true" {
			t.Errorf("busy: %v, %v", busy.Status(), busy.Attributes())
		}
		if failed.Status().Code != codes.Error || !slices.Equal(events(failed), []string{"exception"}) {
			t.Errorf("failed: %v, %v", failed.Status(), failed.Events())
		}
		for _, s := range ended {
			if valueOf(s, "hasp.name") != "" {
				t.Error("the name is in the span")
			}
		}
	})
}

func ExampleNew() {
	spans := tracetest.NewSpanRecorder()
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)) // in earnest: yours, with an exporter
	tracing := otelhasp.New(otelhasp.Options{Provider: provider})
	client, err := hasp.New(hasptest.New().Backend(), tracing.Options()...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	err = client.Do(context.Background(), "orders/42", func(context.Context) error { return nil })
	fmt.Println(err, spans.Ended()[0].Name())
	// Output: <nil> hasp lock
}
