package serve_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/memlock"
)

// obliging does all that a holder may ask for, and does not look whether it holds.
type obliging struct{ driver.Ticket }

func (obliging) Adopt(_ context.Context, _ string, seq uint64) (driver.Verdict, error) {
	return driver.Verdict{Held: true, Token: seq}, nil
}
func (obliging) Publish(context.Context, []byte) error  { return nil }
func (obliging) Downgrade(context.Context, int64) error { return nil }

// A client whose lock waits asks for all that only a holder may, and gets none of it at a store that
// would do it. Its place stays, and the lock is granted to it in its turn.
func TestWaiterIsNoHolder(t *testing.T) {
	store := ticketStore{memlock.New().Backend(), func(t driver.Ticket, _ driver.Request) driver.Ticket { return obliging{t} }}
	c, _ := with(t, serve.Options{Store: store})
	other := &api{t: t, s: c.s}
	other.open(time.Minute)
	held := other.lock("1", "a")
	c.open(time.Minute)
	waits := c.lock("1", "a")
	if waits.State != httpapi.Waiting {
		t.Fatalf("beside a holder: %+v", waits)
	}
	for _, refused := range []bool{true, false} {
		as, l := c, waits
		if !refused { // the control
			as, l = other, held
		}
		for what, do := range map[string]func() int{
			"adopts itself": func() int {
				return as.do("POST", "/v1/locks/1/adopt", httpapi.AdoptLock{Acquire: httpapi.Acquire{Name: "a"}, From: l.Entry, Seq: held.Token, FromSession: as.session, FromLock: 1}, nil)
			},
			"becomes a reader": func() int { return as.do("POST", "/v1/locks/1/downgrade", httpapi.Smaller{Units: 1}, nil) },
			"publishes":        func() int { return as.do("PUT", "/v1/locks/1/value", httpapi.Value{Value: []byte("x")}, nil) },
		} {
			if got := do(); (got >= 400) != refused {
				t.Errorf("%s: %d, refused %t", what, got, refused)
			}
		}
	}
	c.refused(httpapi.Gone, "POST", "/v1/locks/7/downgrade", httpapi.Smaller{Units: 1})
	if again := c.lock("1", "a"); again.State != httpapi.Waiting {
		t.Fatalf("after all that: %+v", again)
	}
	other.want(204, "DELETE", "/v1/locks/1", nil, nil)
	var l httpapi.Lock
	c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 10_000}, &l)
	if l.State != httpapi.Held || l.Token <= held.Token {
		t.Errorf("in its turn: %+v after %+v", l, held)
	}
}

// observing takes for a try as long as a store without a clock does when the holder looks dead.
type observing struct {
	driver.Ticket
	takes time.Duration
}

func (t observing) Enqueue(ctx context.Context) (driver.Verdict, error) {
	select {
	case <-time.After(t.takes):
		return t.Ticket.Enqueue(ctx)
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
}

// A try of a client with the longest TTL meets a dead holder that has to be observed for as long. It
// gets the lock by that request; the session is kept alive meanwhile.
func TestTryObservesADeadHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = time.Minute
		store := ticketStore{memlock.New().Backend(), func(t driver.Ticket, _ driver.Request) driver.Ticket { return observing{t, ttl + ttl/100} }}
		c, _ := with(t, serve.Options{Store: store})
		c.open(ttl)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			var l httpapi.Lock
			if c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", NoWait: true}, &l); l.State != httpapi.Held {
				t.Errorf("%+v", l)
			}
		}()
		for range 3 {
			time.Sleep(20 * time.Second)
			c.want(200, "POST", "/v1/session/keepalive", nil, nil)
		}
		<-ended
	})
}
