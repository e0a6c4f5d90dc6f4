package serve_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/memlock"
)

// unanswered loses the answer to its first Enqueue, and grants every wait until it has got one.
type unanswered struct {
	driver.Ticket
	asked int
}

func (t *unanswered) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.Ticket.Enqueue(ctx)
	if t.asked++; t.asked == 1 && err == nil {
		return driver.Verdict{}, errors.New("the answer is lost")
	}
	return v, err
}

func (t *unanswered) Wait(ctx context.Context) (driver.Verdict, error) {
	if t.asked == 1 {
		return driver.Verdict{Held: true, Token: 1}, nil
	}
	return t.Ticket.Wait(ctx)
}

// A lock is waited for after a request to acquire it that was not answered. Its client is told what
// the store says, and not what a ticket makes of a queue that it has not seen.
func TestWaitUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		loses := false
		c, _ := with(t, serve.Options{Store: ticketStore{store.Backend(), func(t driver.Ticket, _ driver.Request) driver.Ticket {
			if loses {
				return &unanswered{Ticket: t}
			}
			return t
		}}})
		c.open(time.Minute)
		c.lock("1", "a")
		loses = true
		c.refused(httpapi.Unknown, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "a", Wait: 1000})
		var l httpapi.Lock
		c.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "a", Wait: 1000}, &l)
		if l.State != httpapi.Waiting {
			t.Errorf("another holds it, and a wait is answered with %+v", l)
		}
		c.refused(httpapi.Unknown, "PUT", "/v1/locks/3", httpapi.Acquire{Name: "a", NoWait: true})
		c.want(200, "PUT", "/v1/locks/3", httpapi.Acquire{Name: "a", NoWait: true}, &l)
		if l.State != httpapi.Busy {
			t.Errorf("a try for what another holds: %+v", l)
		}
		c.refused(httpapi.Gone, "PUT", "/v1/locks/3", httpapi.Acquire{Name: "a", Wait: 1000})
		c.want(204, "DELETE", "/v1/locks/1", nil, nil)
		c.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "a", Wait: 1000}, &l)
		if l.State != httpapi.Held {
			t.Errorf("it is free: %+v", l)
		}
	})
}
