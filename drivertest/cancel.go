package drivertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/faultnet"
)

// cancelBound is how soon a call returns once its context has ended, under any fault (L3).
const cancelBound = 250 * time.Millisecond

var cancelTests = slices.Concat(
	exclusively("Waiting", nil, testCancelWaiting),
	exclusively("AtGrant", nil, testCancelAtGrant),
	[]test{
		{name: "Before", run: testCancelBefore},
		{name: "InLocalQueue", run: testCancelInLocalQueue},
		{name: "DuringEnqueue", run: testCancelDuringEnqueue},
		{name: "WhileCutOff", run: testCancelWhileCutOff},
		{name: "WhileOpening", run: testCancelWhileOpening},
		{name: "NotByTheStore", run: testCancelNotByTheStore},
		{name: "NotByTheNetwork", run: testCancelNotByTheNetwork},
		{name: "NotByDeadServers", run: testCancelNotByDeadServers},
		{name: "CloseWhileSilent", run: testCloseWhileSilent},
	},
)

// every kind of acquisition the store supports.
func (e *env) everyKind(c *client, name string) map[string]acquire {
	kinds := map[string]acquire{
		"Lock": c.Mutex(name).Lock, "TryLock": c.Mutex(name).TryLock,
		"writer's Lock": c.RWMutex(name).Lock, "writer's TryLock": c.RWMutex(name).TryLock,
	}
	if e.traits.Shared {
		kinds["RLock"], kinds["TryRLock"] = c.RWMutex(name).RLock, c.RWMutex(name).TryRLock
	}
	if e.traits.Counting {
		kinds["Acquire"] = func(ctx context.Context) (*hasp.Lease, error) { return c.Semaphore(name, 3).Acquire(ctx, 1) }
		kinds["TryAcquire"] = func(ctx context.Context) (*hasp.Lease, error) { return c.Semaphore(name, 3).TryAcquire(ctx, 1) }
	}
	if e.traits.Values {
		kinds["Campaign"] = func(ctx context.Context) (*hasp.Lease, error) {
			_, err := c.Election(name).Campaign(ctx, nil)
			return nil, err
		}
	}
	return kinds
}

// L3: a nil or ended context is refused before any I/O, with its own error.
func testCancelBefore(e *env) {
	c := e.intercepted()
	because := errors.New("because")
	over, cancel := context.WithCancelCause(e.ctx())
	cancel(because)
	late, cancelLate := context.WithDeadline(e.ctx(), time.Now().Add(-time.Second))
	defer cancelLate()
	for kind, lock := range e.everyKind(c, e.name()) {
		_, err := lock(nil)
		e.wantErr(kind+" with a nil context", err, hasp.ErrInvalid)
		_, err = lock(over)
		e.wantErr(kind+" with a cancelled context", err, context.Canceled, because)
		_, err = lock(late)
		e.wantErr(kind+" with a context past its deadline", err, context.DeadlineExceeded)
	}
	if n := c.interceptor.count(callOpen, callEnqueue); n != 0 {
		e.Errorf("%d calls of the driver were made", n)
	}
}

// ends requires that the attempt returns soon with the context's error.
func (a *attempt) ends(what string, targets ...error) {
	a.env.Helper()
	began := time.Now()
	<-a.done
	if took := time.Since(began); took > a.env.limit(cancelBound) {
		a.env.Errorf("%s: returned %s after its context ended", what, took)
	}
	if a.err == nil {
		a.env.Fatalf("%s: acquired all the same", what)
	}
	a.env.wantErr(what, a.err, targets...)
}

// L3, L4: a waiter that gives up returns at once, leaves nothing, and those behind it move
// up.
func testCancelWaiting(e *env, l *locker) {
	b, quitter, behind := e.backend(), e.client(), e.client()
	held := e.must(l.lock(e.client())(e.ctx()))
	quits := quitter.queue(l.lock(quitter))
	stays := behind.queue(l.lock(behind))
	quits.cancel()
	quits.ends("cancelled while waiting", context.Canceled)
	l.left(e, b, 2)
	stays.blocked("only a waiter has left")

	ctx, cancel := context.WithTimeout(e.ctx(), 30*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := l.lock(quitter)(ctx)
	e.wantErr("deadline while waiting", err, context.DeadlineExceeded)
	if took := time.Since(began) - 30*time.Millisecond; took > e.limit(cancelBound) {
		e.Errorf("returned %s after the deadline", took)
	}
	l.left(e, b, 2)
	e.release(held)
	e.release(stays.lease())
	l.left(e, b, 0)
}

// L3: a waiter in the local queue of its process has no entry in the store, and its departure does
// not delay the others there.
func testCancelInLocalQueue(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	inStore := c.queue(c.Mutex(name).Lock)
	queued := e.start(c.Mutex(name).Lock)
	after := e.start(c.Mutex(name).Lock)
	e.settle()
	queued.cancel()
	queued.ends("cancelled in the local queue", context.Canceled)
	inStore.cancel()
	inStore.ends("cancelled in the store", context.Canceled)
	e.release(held)
	e.release(after.lease())
	e.empty(b, name)
}

// L3, L4: the context ends while the first request is under way: it was not sent, or it
// was sent, or it was answered and the answer is lost. Nothing is left in each case.
func testCancelDuringEnqueue(e *env) {
	b, other := e.backend(), e.client()
	lost := errors.New("the answer is lost")
	for _, taken := range []bool{false, true} {
		for _, step := range []string{"before it is sent", "as it is sent", "as it is answered"} {
			what := "cancelled " + step
			name, c := e.name(), e.intercepted()
			var held *hasp.Lease
			if taken {
				held = e.must(other.Mutex(name).Lock(e.ctx()))
			}
			ctx, cancel := context.WithCancel(e.ctx())
			c.interceptor.spoil(func(k call) error {
				if k == callEnqueue && step != "as it is answered" {
					cancel()
					if step == "before it is sent" {
						return ctx.Err()
					}
				}
				return nil
			}, func(k call, err error) error {
				if k == callEnqueue && step == "as it is answered" {
					cancel()
					return lost
				}
				return err
			})
			l, err := c.Mutex(name).Lock(ctx)
			c.interceptor.spoil(nil, nil)
			if err == nil && !taken && step == "as it is sent" {
				e.release(l) // the driver was faster than the context
			} else {
				e.wantErr(what, err, context.Canceled)
			}
			if held != nil {
				e.release(held)
			}
			e.empty(b, name)
		}
	}
}

// L3, L4: the store does not answer at all. The call returns; what it left goes as soon as
// the store can be reached.
func testCancelWhileCutOff(e *env) {
	b, name, c := e.backend(), e.name(), e.intercepted()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	waiting := c.queue(c.Mutex(name).Lock)
	c.interceptor.cut()
	fresh := e.start(c.Mutex(e.name()).Lock) // its Enqueue gets no answer
	e.settle()
	waiting.cancel()
	waiting.ends("cancelled while cut off", context.Canceled)
	fresh.cancel()
	fresh.ends("cancelled without an answer", context.Canceled)
	c.interceptor.heal()
	e.release(held)
	e.empty(b, name)
}

// L3: not even a session can be opened.
func testCancelWhileOpening(e *env) {
	c := e.intercepted()
	c.interceptor.cut()
	for kind, lock := range e.everyKind(c, e.name()) {
		a := e.start(lock)
		e.settle()
		a.cancel()
		a.ends(kind+" cancelled while opening", context.Canceled)
	}
	c.interceptor.heal()
	e.release(e.must(c.Mutex(e.name()).Lock(e.ctx())))
}

// L4: the context ends at the very moment of the grant. It may count as either, but a lease that no
// caller received must not stay in the store.
func testCancelAtGrant(e *env, l *locker) {
	b, holder, c := e.backend(), e.client(), e.client()
	for i := range 12 {
		held := e.must(l.lock(holder)(e.ctx()))
		a := c.queue(l.lock(c))
		released := make(chan error, 1)
		go func() { released <- held.Release(e.ctx()) }()
		for range i * i * 4 { // vary the time between the two
			runtime.Gosched()
		}
		a.cancel()
		<-a.done
		if err := <-released; err != nil {
			e.Fatalf("release: %v", err)
		}
		switch {
		case a.err == nil:
			e.release(a.got)
		case !errors.Is(a.err, context.Canceled):
			e.Fatalf("cancelled at the grant: %v", a.err)
		}
		l.left(e, b, 0)
	}
}

// L3: a caller whose context lives never gets a context's error: it would take its own for ended,
// and a program that takes that for a lock that is taken would skip its work. Here every answer of
// the store is the time-out of a request.
func testCancelNotByTheStore(e *env) {
	for _, withheld := range []call{callOpen, callEnqueue, callPublish, callLeave} {
		name, c := e.name(), e.shortLived()
		spoil := func() {
			c.interceptor.spoil(func(k call) error {
				if k == withheld {
					return fmt.Errorf("drivertest: no answer: %w", context.DeadlineExceeded)
				}
				return nil
			}, nil)
		}
		switch {
		case withheld == callOpen, withheld == callEnqueue:
			spoil()
			_, err := c.Mutex(name).Lock(context.Background())
			e.notTheCallers("lock", err)
		case withheld == callLeave && e.traits.Liveness == driver.ProcessBound:
			// Nothing ever takes the lock away, so that a release waits as long as its caller does.
		case e.traits.Values:
			term, err := c.Election(name).Campaign(e.ctx(), nil)
			if err != nil {
				e.Fatalf("campaign: %v", err)
			}
			spoil()
			if withheld == callPublish {
				e.notTheCallers("publish", term.Publish(context.Background(), []byte("value")))
			} else {
				e.notTheCallers("release", term.Release(context.Background()))
			}
		}
		c.interceptor.spoil(nil, nil)
	}
}

// notTheCallers requires an error, which is no context's.
func (e *env) notTheCallers(what string, err error) {
	e.Helper()
	if err == nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		e.Errorf("%s with a context that lives, and no answer of the store: %v", what, err)
	}
}

// The same on a network that is silent: every time-out of the driver and of its client is met.
func testCancelNotByTheNetwork(e *env) {
	b, cut := e.behindProxies()
	c := e.clientOn(b, nil, e.h.TTL)
	l := e.must(c.Mutex(e.name()).Lock(e.ctx()))
	heal := cut()
	defer heal()
	if got, err := c.Mutex(e.name()).Lock(context.Background()); err == nil {
		e.release(got)
		e.Skip("the client knows a way around the proxies")
	} else {
		e.notTheCallers("lock", err)
		e.wantErr("lock", err, hasp.ErrUnknown)
	}
	e.noAnswer(c, "in a session")
	<-l.Context().Done()
	e.notTheCallers("the loss", l.Err())
	e.noAnswer(c, "without a session")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answer := make(chan error, 1)
	go func() { _, err := c.Inspect(ctx, e.name()); answer <- err }()
	select {
	case err := <-answer:
		e.notTheCallers("inspect", err)
	case <-time.After(e.longTTL()): // a driver may wait for as long as its caller does
		cancel()
		<-answer
	}
}

// And where the servers are gone: what Lock says does not depend on how they are.
func testCancelNotByDeadServers(e *env) {
	if e.h.Cut != nil {
		e.Skip("its network is not one of proxies")
	}
	n, b := e.throughProxies()
	c := e.clientOn(b, nil, e.h.TTL)
	l := e.must(c.Mutex(e.name()).Lock(e.ctx()))
	n.Crash()
	if got, err := c.Mutex(e.name()).Lock(context.Background()); err == nil {
		e.release(got)
		e.Skip("the client knows a way around the proxies")
	} else {
		e.notTheCallers("lock", err)
		e.wantErr("lock", err, hasp.ErrUnknown)
	}
	<-l.Context().Done()
	e.noAnswer(c, "without a session")
}

// noAnswer tries locks of a store that does not answer. It is ErrUnknown for a caller whose context
// lives, and its own error for one whose context has ended.
func (e *env) noAnswer(c *client, where string) {
	e.Helper()
	for kind, lock := range e.everyKind(c, e.name()) {
		answer := make(chan error, 1)
		ctx, cancel := context.WithTimeout(e.ctx(), 50*time.Millisecond)
		go func() { _, err := lock(ctx); answer <- err }()
		err := <-answer
		cancel()
		if !errors.Is(err, hasp.ErrUnknown) { // known at once: nothing is listening there
			e.wantErr(kind+" "+where+", with a deadline", err, context.DeadlineExceeded)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.longTTL()+10*time.Second)
	defer cancel()
	_, err := c.Mutex(e.name()).TryLock(ctx)
	if ctx.Err() != nil {
		e.Errorf("try %s: it does not return", where)
	}
	e.notTheCallers("try "+where, err)
	e.wantErr("try "+where, err, hasp.ErrUnknown)
}

// closeBound is how long Client.Close may take, and what a busy machine adds.
const closeBound = 7*time.Second + 2*time.Second

// A client closes in time while its server is silent, and the driver has ended by then what it had
// begun. Its entries end with the TTL.
func testCloseWhileSilent(e *env) {
	b, cut := e.behindProxies()
	c, other, name := e.clientOn(b, nil, e.h.TTL), e.client(), e.name()
	taken := e.must(other.Mutex(name).Lock(e.ctx()))
	waiting := c.queue(c.Mutex(name).Lock)
	mine := e.name()
	e.must(c.Mutex(mine).Lock(e.ctx()))
	heal := cut()
	began := time.Now()
	if err := c.Close(); err != nil {
		e.Errorf("close: %v", err)
	}
	if took := time.Since(began); took > closeBound {
		e.Errorf("closed after %s", took)
	}
	waiting.ends("after close", hasp.ErrClosed)
	heal()
	e.release(taken)
	for _, free := range []string{name, mine} {
		e.release(e.must(other.Mutex(free).Lock(e.ctx())))
	}
}

// behindProxies opens the store through proxies, which cut makes silent.
func (e *env) behindProxies() (b driver.Backend, cut func() (heal func())) {
	if e.h.Cut != nil {
		b = e.h.Open(e)
		return b, func() func() { return e.h.Cut(e, b) }
	}
	n, b := e.throughProxies()
	return b, func() func() { n.Partition(); return n.Heal }
}

// throughProxies opens the store through one proxy for each of its servers.
func (e *env) throughProxies() (faultnet.Network, driver.Backend) {
	u, err := driver.SplitURL(e.h.URL)
	if err != nil || u.Host == "" {
		e.Skip("the store has no network")
	}
	n, err := faultnet.NewNetwork(strings.Split(u.Host, ",")...)
	if err != nil {
		e.Skipf("no proxies: %v", err)
	}
	e.Cleanup(n.Close)
	u.Host = strings.Join(n.Addrs(), ",")
	b, err := driver.Open(e.ctx(), u.String())
	if err != nil {
		e.Fatalf("open through proxies: %v", err)
	}
	return n, b
}
