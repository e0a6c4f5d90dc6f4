package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/linear"
)

// recordedClient is a client that relies on Held all the time it has a lock, and has all of it
// recorded.
type recordedClient struct {
	*hasp.Client
	who string
	rec *history.Recorder
}

// recordedHold is a hold with its history.
type recordedHold struct {
	*hasp.Lease
	op   *history.Attempt
	stop func()
}

func (w recordedClient) lock(ctx context.Context, name string) (*recordedHold, error) {
	op := w.rec.Acquire(w.who, name, history.Exclusive())
	l, err := w.Mutex(name).Lock(ctx)
	if err != nil {
		op.Unknown(err) // a request may be on its way yet
		return nil, err
	}
	op.Granted(l.Token(), 0)
	return &recordedHold{l, op, op.Watch(l.Held, l.Context().Done(), 2*time.Millisecond)}, nil
}

func (g *recordedHold) release(ctx context.Context) error {
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

// promises are checked in every history of etcdlock.
var promises = linear.Options{Fencing: true, FIFO: true, Limit: 10 * time.Second}

// violations checks what was recorded so far, and describes each violation.
func violations(t testing.TB, rec *history.Recorder) (wrong []string) {
	t.Helper()
	h, err := rec.History()
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range linear.Check(h, promises) {
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
	holder, waiter := recordedClient{x.holder, "holder", rec}, recordedClient{x.waiter, "waiter", rec}
	first, err := holder.lock(ctx(t), x.name)
	for i := 0; i < 3 && errors.Is(err, hasp.ErrUnknown); i++ { // its session has ended in the fault of a case before
		first, err = holder.lock(ctx(t), x.name)
	}
	if err != nil {
		t.Fatal(err)
	}
	waiting, giveUp := context.WithCancel(ctx(t))
	defer giveUp()
	next, failed := make(chan *recordedHold, 1), make(chan error, 1)
	go func() {
		g, err := waiter.lock(waiting, x.name)
		if err != nil {
			failed <- err
			return
		}
		next <- g
	}()
	testkit.Eventually(t, "one waits", func() bool {
		if len(next)+len(failed) > 0 {
			return true // on a machine so busy that the holder has expired
		}
		q, err := x.holder.Inspect(ctx(t), x.name)
		return err == nil && len(q.Waiters) == 1
	})
	time.Sleep(100 * time.Millisecond) // most often its watch is established by now
	x.meanwhile()
	// The fault may outlast trust, before the release or during it. That release says so, and
	// nil only if no other held by then, is for the checker.
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

// flawed opens a client whose driver is broken.
func flawed(t testing.TB, url string, wrap func(driver.Backend) driver.Backend, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.ClientOn(t, wrap(testkit.Open(t, url)), opts...)
}
