package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
)

// witness is a client that relies on Held all the time it has a lock, and has all of it
// recorded.
type witness struct {
	*hasp.Client
	who string
	rec *history.Recorder
}

// grip is a recorded hold.
type grip struct {
	*hasp.Lease
	op   *history.Attempt
	stop func()
}

func (w witness) lock(ctx context.Context, name string) (*grip, error) {
	op := w.rec.Acquire(w.who, name, history.Exclusive())
	l, err := w.Mutex(name).Lock(ctx)
	if err != nil {
		op.Unknown(err) // a request may be on its way yet
		return nil, err
	}
	op.Granted(l.Token(), 0)
	return &grip{l, op, op.Watch(l.Held, l.Lost(), 2*time.Millisecond)}, nil
}

func (g *grip) release(ctx context.Context) error {
	g.stop()
	g.op.Releasing()
	err := g.Release(ctx)
	switch {
	case err == nil:
		g.op.Released()
	case errors.Is(err, hasp.ErrLost), errors.Is(err, hasp.ErrNotHeld):
		g.op.NotHeld(err)
	default:
		g.op.ReleaseUnknown(err)
	}
	return err
}

// promises are what every history of etcdlock is judged by.
var promises = history.Options{Fencing: true, FIFO: true, Limit: 10 * time.Second}

// violations judges what was recorded so far, in words.
func violations(t testing.TB, rec *history.Recorder) (wrong []string) {
	t.Helper()
	h, err := rec.History()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range history.Judge(h, promises) {
		wrong = append(wrong, v.String())
	}
	return wrong
}

// handOver has one client wait behind another, breaks something in the meantime, and
// releases. It is the oracle of the tests of faults: that the waiter takes over in time,
// and that at no moment two believed to hold. TestHandOverSees shows that it can say no.
type handOver struct {
	holder, waiter *hasp.Client
	name           string
	meanwhile      func()

	// within is for the waiter, from the release on; 0: healed. A wait that has no end would
	// be told as well, so it is generous: a slow machine is no fault of the driver.
	within time.Duration
}

// run returns what was wrong.
func (x handOver) run(t testing.TB) (wrong []string) {
	t.Helper()
	rec := history.New()
	holder, waiter := witness{x.holder, "holder", rec}, witness{x.waiter, "waiter", rec}
	first, err := holder.lock(ctx(t), x.name)
	if err != nil {
		t.Fatal(err)
	}
	waiting, giveUp := context.WithCancel(ctx(t))
	defer giveUp()
	next, failed := make(chan *grip, 1), make(chan error, 1)
	go func() {
		g, err := waiter.lock(waiting, x.name)
		if err != nil {
			failed <- err
			return
		}
		next <- g
	}()
	testkit.Eventually(t, "one waits", func() bool {
		q, err := x.holder.Inspect(ctx(t), x.name)
		return err == nil && len(q.Waiters) == 1
	})
	time.Sleep(100 * time.Millisecond) // most often its watch stands by now
	x.meanwhile()
	// The fault may outlast trust, before the release or during it. That release says so, and
	// nil only if nobody else held by then, is for the judge.
	_ = first.release(ctx(t))
	began := time.Now()
	within := x.within
	if within == 0 {
		within = healed
	}
	select {
	case g := <-next:
		t.Logf("%s: the waiter took %s", x.name, time.Since(began).Round(time.Microsecond))
		if err := g.release(ctx(t)); err != nil && !errors.Is(err, hasp.ErrLost) && !errors.Is(err, hasp.ErrUnknown) {
			wrong = append(wrong, fmt.Sprintf("release by the waiter: %v", err))
		}
	case err := <-failed:
		wrong = append(wrong, fmt.Sprintf("the waiter failed: %v", err))
	case <-time.After(within):
		wrong = append(wrong, fmt.Sprintf("the waiter did not take over within %s", within))
		giveUp()
		select { // it may have been granted at the last moment
		case <-failed:
		case g := <-next:
			_ = g.release(ctx(t)) // that it came late is said
		}
	}
	return append(wrong, violations(t, rec)...)
}

// passes demands that nothing is wrong.
func (x handOver) passes(t testing.TB) {
	t.Helper()
	for _, w := range x.run(t) {
		t.Errorf("%s: %s", x.name, w)
	}
}

// broken is a real backend with a flaw between it and the core: what the tests of faults
// must notice. What is nil is done right.
type broken struct {
	driver.Backend
	keepAlive func(context.Context, driver.Session) (time.Duration, error)
	wait      func(context.Context, driver.Ticket) (driver.Verdict, error)
	verdict   func(driver.Verdict) driver.Verdict
	hush      bool // of the loss of an entry, the core is not told
}

func (b *broken) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if told := o.Gone; b.hush {
		o.Gone = func(id string, err error) {
			if id == "" {
				told(id, err)
			}
		}
	}
	s, granted, err := b.Backend.Open(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	return &brokenSession{s, b}, granted, nil
}

type brokenSession struct {
	driver.Session
	flaw *broken
}

func (s *brokenSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if s.flaw.keepAlive != nil {
		return s.flaw.keepAlive(ctx, s.Session)
	}
	return s.Session.KeepAlive(ctx)
}

func (s *brokenSession) Ticket(r driver.Request) driver.Ticket {
	return &brokenTicket{s.Session.Ticket(r), s.flaw}
}

type brokenTicket struct {
	driver.Ticket
	flaw *broken
}

func (k *brokenTicket) said(v driver.Verdict, err error) (driver.Verdict, error) {
	if err == nil && k.flaw.verdict != nil {
		v = k.flaw.verdict(v)
	}
	return v, err
}

func (k *brokenTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return k.said(k.Ticket.Enqueue(ctx))
}

func (k *brokenTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	if k.flaw.wait != nil {
		return k.flaw.wait(ctx, k.Ticket)
	}
	return k.said(k.Ticket.Wait(ctx))
}

// The flaws. Each is in some lock of the world.

// liar says that it has renewed, has not asked, and does not want to know: the cached flag.
func liar(ttl time.Duration) broken {
	return broken{
		keepAlive: func(context.Context, driver.Session) (time.Duration, error) { return ttl, nil },
		hush:      true,
	}
}

// deaf sleeps through its turn.
func deaf() broken {
	return broken{wait: func(ctx context.Context, _ driver.Ticket) (driver.Verdict, error) {
		<-ctx.Done()
		return driver.Verdict{}, ctx.Err()
	}}
}

// lawless is granted whatever it asks for.
func lawless(tokens *atomic.Uint64) broken {
	return broken{verdict: func(driver.Verdict) driver.Verdict {
		return driver.Verdict{Held: true, Token: tokens.Add(1)}
	}}
}

// forger has tokens of its own, which fall.
func forger(tokens *atomic.Uint64) broken {
	return broken{verdict: func(v driver.Verdict) driver.Verdict {
		if v.Held {
			v.Token = 1_000_000 - tokens.Add(1)
		}
		return v
	}}
}

// flawed opens a client with a flaw.
func flawed(t testing.TB, url string, flaw broken, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	flaw.Backend = testkit.Open(t, url)
	c, err := hasp.New(&flaw, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
