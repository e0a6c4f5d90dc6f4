package drivertest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// These tests start other processes, which live in real time.
var processTests = inProcesses([]test{
	{name: "Counter", run: testProcessCounter},
	{name: "KillHolder", run: testKillHolder},
	{name: "KillWaiter", run: testKillWaiter},
	{name: "StopHolder", needs: both(needsLeases, needsStop), run: testStopHolder},
	{name: "StopHolderKeeps", needs: both(needsNoLeases, needsStop), run: testStopHolderKeeps},
	{name: "StopWaiter", needs: both(needsFIFO, both(needsLeases, needsStop)), run: testStopWaiter},
	{name: "StopWaiterKeeps", needs: both(needsNoLeases, needsStop), run: testStopWaiterKeeps},
	{name: "KillMany", run: testKillMany},
})

func inProcesses(tests []test) []test {
	for i := range tests {
		tests[i].processes = true
	}
	return tests
}

func needsStop(*env) string {
	if !canStop {
		return "processes cannot be stopped on this system"
	}
	return ""
}

func needsNoLeases(e *env) string {
	if e.traits.Liveness == driver.Leased {
		return "entries are leased: a pause loses them"
	}
	return ""
}

// afterCrash is how soon the next is granted once a process has died (L1).
func (e *env) afterCrash() time.Duration {
	switch e.traits.Liveness {
	case driver.ProcessBound:
		return 100 * time.Millisecond
	case driver.ConnectionBound:
		return time.Second // as soon as the server sees the close
	}
	return e.h.TTL + time.Second
}

// soon waits for a grant that a crash has made possible.
func (a *attempt) soon(what string, since time.Time) *hasp.Lease {
	a.env.Helper()
	l := a.lease()
	if took := time.Since(since); took > a.env.limit(a.env.afterCrash()) {
		a.env.Errorf("granted %s after %s; promised are %s", took, what, a.env.afterCrash())
	}
	return l
}

// counterFile is a resource between processes that only a lock protects.
func (e *env) counterFile() (file string, count func() string) {
	e.Helper()
	file = filepath.Join(e.TempDir(), "counter")
	if err := os.WriteFile(file, []byte("0 0"), 0o600); err != nil {
		e.Fatal(err)
	}
	return file, func() string {
		b, err := os.ReadFile(file)
		if err != nil {
			e.Fatal(err)
		}
		n, _, _ := strings.Cut(string(b), " ")
		return n
	}
}

// S1, S2: processes exclude each other, and their tokens grow in the order of the grants.
func testProcessCounter(e *env) {
	name := e.name()
	file, count := e.counterFile()
	var ps []*process
	for range 4 {
		ps = append(ps, e.process(e.longTTL()))
	}
	for _, p := range ps {
		p.do(order{Do: "increment", Name: name, File: file, Times: 25})
	}
	for _, p := range ps {
		if r := p.hears("done"); r.Error != "" {
			if !r.Lost { // a child's TTL is long: such a loss counts
				p.slow(r)
			}
			e.Errorf("increment: %s", r.Error)
		}
	}
	if n := count(); n != "100" {
		e.Errorf("counted %s of 100", n)
	}
}

// holding starts a process that holds the name.
func (e *env) holding(name string) (*process, report) {
	e.Helper()
	p := e.process(e.h.TTL)
	p.do(order{Do: "lock", Name: name})
	return p, p.hears("acquired")
}

// waiting starts a process that waits for the name.
func (e *env) waiting(name string) *process {
	e.Helper()
	p := e.process(e.h.TTL)
	p.do(order{Do: "lock", Name: name})
	p.hears("waiting")
	return p
}

// releases has the process release what it holds.
func (p *process) releases() {
	p.env.Helper()
	p.do(order{Do: "release"})
	if r := p.hears("released"); r.Error != "" {
		p.slow(r)
		p.env.Errorf("release: %s", r.Error)
	}
}

// behind has a client wait for what the child holds. The child's TTL is short: it may have expired
// before the client asks, and then the child says so.
func (p *process) behind(c *client, lock acquire) (a *attempt) {
	p.env.Helper()
	defer func() {
		if a == nil { // it did not wait, and Fatal ends this goroutine
			p.asked()
		}
	}()
	return c.queue(lock)
}

// L1: a holder dies without releasing.
func testKillHolder(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	p, was := e.holding(name)
	next := p.behind(c, c.Mutex(name).Lock)
	began := time.Now()
	p.kill()
	l := next.soon("the holder was killed", began)
	if e.traits.Fencing && l.Token() <= was.Token {
		e.violated("token %d after %d", l.Token(), was.Token)
	}
	e.release(l)
	e.empty(b, name)
}

// L1, L4: a waiter dies without leaving. It blocks no other client, and its entry is removed.
func testKillWaiter(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	dead := e.waiting(name)
	next := c.queue(c.Mutex(name).Lock)
	dead.kill()
	began := time.Now()
	e.release(held)
	e.release(next.soon("the waiter ahead was killed", began))
	e.empty(b, name)
}

// S4, S5, S6: a holder is stopped for longer than its TTL. The lock goes to the next; when the
// holder runs again, its first look shows the loss, and its release reports it and does not touch
// the next.
func testStopHolder(e *env) {
	name, c := e.name(), e.client()
	p, was := e.holding(name)
	next := p.behind(c, c.Mutex(name).Lock)
	began := time.Now()
	p.stop()
	l := next.soon("the holder was stopped", began)
	granted := time.Now()
	if e.traits.Fencing && l.Token() <= was.Token {
		e.violated("token %d after %d", l.Token(), was.Token)
	}
	p.do(order{Do: "held"}) // waits for it
	p.resume()
	r := p.hears("answer")
	if r.Held {
		e.violated("a holder that was stopped beyond its TTL still believes")
	}
	if r.Last.After(granted) {
		e.violated("it believed at a moment %s after the next was granted", r.Last.Sub(granted))
	}
	p.do(order{Do: "release"})
	if r := p.hears("released"); !r.Lost {
		e.Errorf("release after the loss: %q, want ErrLost", r.Error)
	}
	e.lastsATerm(l)
	e.release(l)
}

// S1: where entries live as long as their process or connection, a stopped holder keeps
// the lock.
func testStopHolderKeeps(e *env) {
	name, c := e.name(), e.client()
	p, _ := e.holding(name)
	next := c.queue(c.Mutex(name).Lock)
	p.stop()
	time.Sleep(3 * e.h.TTL / 2) // and not for longer than the holder may trust connections without an answer
	next.blocked("the holder stands still, and lives")
	p.do(order{Do: "held"})
	p.resume()
	if r := p.hears("answer"); !r.Held {
		p.slow(report{Lost: true}) // its last renewal was too long ago when it was stopped
		e.Error("a holder that stood still no longer believes")
	}
	next.blocked("the holder has not released")
	p.releases()
	e.release(next.lease())
}

// L1, S6: a waiter is stopped for longer than its TTL. Others proceed past it, and when it runs
// again it does not believe in the place it had.
func testStopWaiter(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	p := e.waiting(name)
	next := c.queue(c.Mutex(name).Lock)
	old := e.list(b, name)
	p.stop()
	began := time.Now()
	e.release(held)
	l := next.soon("the waiter ahead was stopped", began)
	p.resume()
	p.hears("requeued")
	p.quiet("acquired", "another holds")
	e.release(l)
	r := p.hears("acquired")
	for _, entry := range old {
		if entry.ID == r.ID {
			e.Error("granted the entry that had died while it was stopped")
		}
	}
	if e.traits.Fencing && r.Token <= l.Token() {
		e.violated("token %d after %d", r.Token, l.Token())
	}
	if entries := e.list(b, name); len(entries) != 1 || entries[0].ID != r.ID {
		p.asked()
		e.Errorf("the process believes in %s, and the store has %v", r.ID, ids(entries))
	}
	p.releases()
}

// L5: where entries live as long as their process, a stopped waiter keeps its place. Without an
// order of grants it has no place to keep: it may be stopped after it has reported that it waits
// and before it has asked the store, so that the other is served first. It is still served.
func testStopWaiterKeeps(e *env) {
	name, c := e.name(), e.client()
	held := e.must(e.client().Mutex(name).Lock(e.ctx()))
	p := e.waiting(name)
	next := c.queue(func(ctx context.Context) (*hasp.Lease, error) {
		l, err := c.Mutex(name).Lock(ctx)
		if err == nil && !e.traits.FIFO {
			err = l.Release(ctx)
		}
		return l, err
	})
	p.stop()
	e.release(held)
	if e.traits.FIFO {
		time.Sleep(e.h.TTL / 2)
		next.blocked("the one ahead stands still, and lives")
	}
	p.resume()
	p.hears("acquired")
	p.releases()
	if l := next.lease(); e.traits.FIFO {
		e.release(l)
	}
}

// S1, S2, L1, L4: processes come, count and are killed at any step. No process ever sees a wrong
// count, none gets stuck, and nothing is left.
func testKillMany(e *env) {
	b, name, c := e.backend(), e.name(), e.client()
	file, count := e.counterFile()
	const often = 1 << 30
	var ps []*process
	for range 3 {
		p := e.process(e.h.TTL)
		p.do(order{Do: "increment", Name: name, File: file, Times: often})
		ps = append(ps, p)
	}
	for i := range 5 {
		before := count()
		e.eventually("the count goes on", func() bool { return count() != before })
		ps[i%len(ps)].kill()
		p := e.process(e.h.TTL)
		p.do(order{Do: "increment", Name: name, File: file, Times: often})
		ps[i%len(ps)] = p
	}
	last := e.start(c.Mutex(name).Lock).lease() // among clients that come again and again
	e.release(last)
	began := time.Now()
	for _, p := range ps {
		p.quiet("done", "it was to count for ever")
		p.kill()
	}
	e.release(e.start(c.Mutex(name).Lock).soon("all others were killed", began))
	e.empty(b, name)
}
