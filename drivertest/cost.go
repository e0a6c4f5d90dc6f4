package drivertest

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

var costTests = []test{
	{name: "Idle", run: testIdle, needs: counted},
	{name: "OneNameFails", needs: needsGated, run: testOneName(func(context.Context) error { return errNotTaken })},
	{name: "OneNameHangs", needs: needsGated, run: testOneName(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })},
}

var errNotTaken = errors.New("the test's store does not take it")

func needsGated(e *env) string {
	if e.h.Gated == nil {
		return "no test can make one name of the store fail (Harness.Gated is nil)"
	}
	return ""
}

// idler is a client for which nothing happens, and how many requests it has sent so far.
type idler struct {
	*client
	role string
	sent func() int64
	most int64
}

func (e *env) idler(role string, most int64) idler {
	e.Helper()
	if most == 0 {
		most = 36
	}
	if e.h.Counted != nil {
		b, sent := e.h.Counted(e)
		return idler{e.clientOn(b, nil, e.h.TTL), role, sent, most}
	}
	p := newInterceptor(e.h.Open(e))
	var b driver.Backend = p
	if w, ok := p.Backend.(driver.Watcher); ok {
		b = watchful{p, w}
	}
	return idler{e.clientOn(b, nil, e.h.TTL), role, func() int64 { return int64(p.count(allCalls...)) }, most}
}

// watchful is an interceptor of a store that can be watched. What a watch tells makes its user ask,
// and costs as a request does.
type watchful struct {
	*interceptor
	watcher driver.Watcher
}

func (w watchful) Watch(ctx context.Context, name string, changed func()) error {
	return w.watcher.Watch(ctx, name, func() {
		w.counted(callWatch)
		changed()
	})
}

// counted leaves the test out where the harness says that nothing is counted.
func counted(e *env) string {
	if e.h.Idle.Client < 0 {
		return "the server is too slow for others beside it (Harness.Idle)"
	}
	return ""
}

// L5: while nothing happens, a client sends its renewals and little else, in every role that it can
// have, and also when the holder is older than a TTL: a store's answer about that moment once had
// each observer of Redis ask ninety times a second, for good.
func testIdle(e *env) {
	const terms = 3
	name, taken, bound := e.name(), e.name(), e.h.Idle
	if bound.Observer == 0 {
		bound.Observer = 36
	}
	if !is[driver.Watcher](e) {
		bound.Observer += int64(terms*e.h.TTL/time.Second) + 1
	}
	all := []idler{
		e.idler("a client that holds nothing", bound.Client), e.idler("the holder", bound.Holder),
		e.idler("a waiter", bound.Waiter), e.idler("an observer", bound.Observer),
	}
	client, holder, waiter, observer := all[0], all[1], all[2], all[3]
	e.release(e.must(client.Mutex(e.name()).Lock(e.ctx())))
	held := e.must(holder.Mutex(name).Lock(e.ctx()))
	// Another name: the requests of a waiter may mend for an observer what is wrong.
	ahead := e.shortLived()
	first := e.must(ahead.Mutex(taken).Lock(e.ctx()))
	next := waiter.queue(waiter.Mutex(taken).Lock)
	older := time.After(e.h.TTL + e.h.TTL/2)
	e.follows(observer, name)
	<-older
	before := make([]int64, len(all))
	for i, x := range all {
		before[i] = x.sent()
	}
	time.Sleep(terms * e.h.TTL)
	for i, x := range all {
		n := x.sent() - before[i]
		e.Logf("%s: %d", x.role, n)
		if n > x.most {
			e.Errorf("%s has sent %d requests in %d TTLs in which nothing happened, want %d at most", x.role, n, terms, x.most)
		}
	}
	for _, l := range []*hasp.Lease{held, first} {
		if !l.Held() {
			e.Errorf("a holder for which nothing happened has lost its lock, and nothing was measured: %v", l.Err())
		}
		e.release(l)
	}
	e.release(next.lease())
}

// follows has a client follow a name until the test's end, and returns when it has seen the holder.
func (e *env) follows(c idler, name string) {
	e.Helper()
	ctx, cancel := context.WithCancel(e.ctx())
	seen, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		once := false
		for q, err := range c.Follow(ctx, name) {
			if err == nil && len(q.Holders) > 0 && !once {
				once = true
				close(seen)
			}
		}
	}()
	e.Cleanup(func() { cancel(); <-ended })
	await(e, "the observer's first sight of the holder", seen)
}

// S5, L5: a holder whose store does not take the writes of one name, or has no answer to them,
// keeps all others. It sends half as much again for those at most, and an attempt a second for the
// one, each a read and a write: every attempt was once a renewal of all. The name is had again
// afterwards.
func testOneName(fate func(context.Context) error) func(*env) {
	return func(e *env) {
		const held, terms = 20, 3
		var failing atomic.Pointer[string]
		b, sent := e.h.Gated(e, func(ctx context.Context, text string) error {
			if one := failing.Load(); one != nil && strings.Contains(text, *one) {
				return fate(ctx)
			}
			return nil
		})
		c := e.clientOn(b, nil, e.h.TTL)
		e.Cleanup(func() { failing.Store(nil) })
		leases := make([]*hasp.Lease, held)
		for i := range leases {
			leases[i] = e.must(c.Mutex(e.name()).Lock(e.ctx()))
		}
		count := func() int64 {
			before := sent()
			time.Sleep(terms * e.h.TTL)
			return sent() - before
		}
		usual := count()
		lost := leases[held/3]
		c.disturbs(lost)
		last := path.Base(lost.Name())
		failing.Store(&last)
		n := count()
		e.Logf("%d held: %d requests in %d TTLs, %d while one cannot be written", held, usual, terms, n)
		if most := usual*3/2 + 2*int64(terms*e.h.TTL/time.Second+10); n > most {
			e.Errorf("%d requests while one of %d names cannot be written, %d before: want %d at most", n, held, usual, most)
		}
		for _, l := range leases {
			if want := l != lost; l.Held() != want {
				e.Errorf("one of %d names cannot be written: held %t, want %t: %v", held, l.Held(), want, l.Err())
			}
		}
		failing.Store(nil)
		again := e.must(c.Mutex(lost.Name()).Lock(e.ctx()))
		if e.traits.Fencing && again.Token() <= lost.Token() {
			e.violated("token %d after %d", again.Token(), lost.Token())
		}
		e.release(again)
		for _, l := range leases {
			if l != lost {
				e.release(l)
			}
		}
	}
}
