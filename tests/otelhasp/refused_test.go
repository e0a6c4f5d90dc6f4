package otelhasp_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/otelhasp"
)

// refusing is a store without push whose administrator takes a right away while entries wait:
// hasptest refuses new ones alone.
type refusing struct {
	driver.Backend
	refuses *atomic.Bool
}

type refusingSession struct {
	driver.Session
	refuses *atomic.Bool
}

type refusingTicket struct {
	driver.Ticket
	refuses *atomic.Bool
}

func (b refusing) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return refusingSession{s, b.refuses}, granted, err
}

func (s refusingSession) Ticket(r driver.Request) driver.Ticket {
	return refusingTicket{s.Session.Ticket(r), s.refuses}
}

func (t refusingTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if t.refuses.Load() {
		return driver.Verdict{}, fmt.Errorf("%w: the right to update is missing", driver.ErrRefused)
	}
	return t.Ticket.Enqueue(ctx)
}

func (t refusingTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return t.Ticket.Wait(ctx)
}

// The caller's span is told at once, and once, why its acquisition goes on waiting. That is no end:
// the span of the acquisition has its outcome, and metrics count that alone.
func TestRefusedWhileWaiting(t *testing.T) {
	for _, mended := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			store := hasptest.New()
			l, err := testkit.ClientOn(t, store.Backend()).Mutex("a").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			spans, provider := recorded()
			m, reader := measured(t, otelhasp.MetricsOptions{})
			b := refusing{store.Backend(), &atomic.Bool{}}
			c := testkit.ClientOn(t, b, append(otelhasp.New(otelhasp.Options{Provider: provider}).Options(), hasp.WithObserver(m))...)
			time.AfterFunc(5*time.Second, func() { b.refuses.Store(true) })
			time.AfterFunc(30*time.Second, func() { b.refuses.Store(!mended); l.Unlock() })

			began := time.Now()
			ctx, caller := provider.Tracer("test").Start(t.Context(), "order")
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			_, err = c.Mutex("a").Lock(ctx)
			if mended != (err == nil) || !mended && !errors.Is(err, hasp.ErrRefused) {
				t.Errorf("mended %t: %v", mended, err)
			}
			caller.End()

			ended := spans.Ended()
			own, outer := ended[0], ended[1]
			if got := events(outer); !slices.Equal(got, []string{"waiting", "exception"}) {
				t.Fatalf("mended %t: events of the caller's span: %v", mended, got)
			}
			said := outer.Events()[1]
			if at := said.Time.Sub(began); at < 5*time.Second || at > 10*time.Second || !strings.Contains(message(said), "the right to update is missing") {
				t.Errorf("mended %t: after %s the caller's span was told: %v", mended, at, said.Attributes)
			}
			if outer.Status().Code != codes.Unset || (own.Status().Code == codes.Error) == mended {
				t.Errorf("mended %t: the caller's span is %v, that of the acquisition %v", mended, outer.Status(), own.Status())
			}
			result := map[bool][2]int{true: {1, 0}, false: {0, 1}}[mended]
			expect(t, reader, fmt.Sprintf(`
hasp.acquisitions{result=acquired,store=mem://} %d
hasp.acquisitions{result=busy,store=mem://} 0
hasp.acquisitions{result=failed,store=mem://} %d
`, result[0], result[1]))
		})
	}
}

// message is the text of an exception.
func message(e trace.Event) string {
	for _, a := range e.Attributes {
		if a.Key == attribute.Key("exception.message") {
			return a.Value.AsString()
		}
	}
	return ""
}
