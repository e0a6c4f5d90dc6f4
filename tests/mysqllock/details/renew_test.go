package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A renewal's time is over before every connection has answered, as it happens with many locks on a
// busy machine: it fails, nothing is given up for that, and the answers count for the next. The control is a ping that ends with its caller's time, and takes the
// connection with it.
func TestRenewalCutShort(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	b := testkit.Open(t, sqlkit.With(u, "connections=200&strategy=getlock&fence=off"))
	defer b.Close()
	var lost atomic.Int64
	s, granted, err := b.Open(ctx(t), driver.SessionOptions{TTL: calm, Gone: func(string, error) { lost.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	const locks = 130
	tickets := make([]driver.Ticket, locks)
	for i := range tickets {
		tickets[i] = s.Ticket(request(fmt.Sprint("short", i), fmt.Sprint("short-", i)))
		if v, err := tickets[i].Enqueue(ctx(t)); err != nil || !v.Held {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	naive, err := sqlkit.MariaDBAt(t, p.Addr(), "locks").Conn(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	p.Set(faultnet.Down, faultnet.Rule{Delay: 300 * time.Millisecond})
	within := func(limit time.Duration) (time.Duration, error) {
		short, cancel := context.WithTimeout(ctx(t), limit)
		defer cancel()
		return s.KeepAlive(short)
	}
	if _, err := within(30 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("renewed in a tenth of the time that an answer takes: %v", err)
	}
	first := time.Now()
	testkit.Eventually(t, "a renewal by answers that come late", func() bool {
		began := time.Now()
		all, err := within(500 * time.Millisecond)
		switch {
		case err == nil:
			return all == granted
		case errors.Is(err, context.DeadlineExceeded):
			return false // this machine is busy
		}
		// Those that this call has not reached are late, and have what is left of a call before, or
		// if none has reached them of the Open.
		var partial *driver.PartialRenewal
		if !errors.As(err, &partial) {
			t.Fatal(err)
		}
		for _, left := range partial.Late {
			if left < granted-began.Sub(first) {
				return false
			}
		}
		return len(partial.Late) < locks
	})
	short, cancel := context.WithTimeout(ctx(t), 30*time.Millisecond)
	_ = naive.PingContext(short)
	cancel()
	p.Set(faultnet.Down, faultnet.Rule{})
	for _, ticket := range tickets {
		if err := ticket.Leave(ctx(t)); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	if n := lost.Load(); n > 0 {
		t.Errorf("%d of %d locks were given up", n, locks)
	}
	if err := naive.PingContext(ctx(t)); err == nil {
		t.Error("the control still has its connection: this has tested nothing")
	}
	if err := s.Close(ctx(t)); err != nil {
		t.Error(err)
	}
}

// One connection falls silent, the others are renewed: only its lock is given up.
func TestSilentConnection(t *testing.T) {
	t.Parallel()
	p, u := proxied(t)
	b := testkit.Open(t, sqlkit.With(u, "strategy=getlock"))
	defer b.Close()
	gone := make(chan string, 10)
	const granting = 12 * time.Second // the most
	s, granted, err := b.Open(ctx(t), driver.SessionOptions{TTL: granting, Gone: func(id string, _ error) { gone <- id }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.Background())
	silent := s.Ticket(request("silent-one", "silent-one"))
	testkit.Held(t, silent)
	p.Set(faultnet.Down, faultnet.Rule{Mode: faultnet.Drop})
	began := time.Now()
	short, cancel := context.WithTimeout(ctx(t), granted/6)
	defer cancel()
	// On a busy machine the ping's time may be over as well when the call looks: then the lock was
	// given up.
	if _, err := s.KeepAlive(short); err == nil && len(gone) == 0 {
		t.Error("renewed by a connection that is silent")
	}
	p.Set(faultnet.Down, faultnet.Rule{}) // for new connections; the silent one has a hole
	speaks := s.Ticket(request("speaks", "speaks"))
	testkit.Held(t, speaks)
	testkit.Eventually(t, "a renewal without the silent one", func() bool {
		within, cancel := context.WithTimeout(ctx(t), granted/6)
		defer cancel()
		_, err := s.KeepAlive(within)
		return err == nil
	})
	if id := <-gone; id != "silent-one" || len(gone) > 0 {
		t.Errorf("given up: %s, and %d more", id, len(gone))
	}
	t.Logf("given up after %s of %s", time.Since(began).Round(time.Millisecond), granted)
	if err := speaks.Leave(ctx(t)); err != nil {
		t.Error(err)
	}
}
