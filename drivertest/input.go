package drivertest

import (
	"context"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

var inputTests = []test{
	{name: "Names", run: testBadNames},
	{name: "TTL", run: testBadTTL},
	{name: "Notes", run: testBadNotes},
	{name: "Values", needs: needsValues, run: testBadValues},
	{name: "Permits", needs: needsCounting, run: testBadPermits},
	{name: "Mismatch", needs: needsCounting, run: testOtherKind},
	{name: "AfterClose", run: testAfterClose},
}

// untouched requires that the driver got no call at all.
func (c *client) untouched() {
	c.env.Helper()
	if n := c.interceptor.count(callOpen, callEnqueue, callKeepAlive, callPublish); n != 0 {
		c.env.Errorf("%d calls of the driver were made", n)
	}
}

// S9: an invalid name is refused before any I/O, by every function that takes one.
func testBadNames(e *env) {
	c := e.intercepted()
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("n", 513), "not UTF-8": "a\xff", "half a surrogate": "\xed\xa0\x80",
		"overlong": "\xc0\xaf", "NUL": "a\x00b", "cut off": strings.Repeat("\u00e9", 256)[:511],
	} {
		for kind, lock := range e.everyKind(c, name) {
			_, err := lock(e.ctx())
			e.wantErr(kind+" of a name that is "+what, err, hasp.ErrInvalid)
		}
		_, err := c.Inspect(e.ctx(), name)
		e.wantErr("inspect of a name that is "+what, err, hasp.ErrInvalid)
		err = c.Do(e.ctx(), name, func(context.Context) error { return nil })
		e.wantErr("do under a name that is "+what, err, hasp.ErrInvalid)
	}
	c.untouched()
}

// A TTL that cannot be kept is refused, never rounded.
func testBadTTL(e *env) {
	b := e.backend()
	refused := func(what string, opts ...hasp.Option) {
		e.Helper()
		_, err := hasp.New(b, opts...)
		e.wantErr(what, err, hasp.ErrInvalid)
	}
	refused("no TTL", hasp.WithTTL(0))
	refused("negative TTL", hasp.WithTTL(-time.Second))
	refused("negative margin", hasp.WithSafetyMargin(-time.Second))
	if e.traits.Liveness == driver.ProcessBound {
		return // there is no TTL to keep
	}
	refused("TTL of a nanosecond", hasp.WithTTL(1))
	refused("TTL under the store's floor", hasp.WithTTL(e.traits.MinTTL-1))
	refused("margin as long as the TTL", hasp.WithTTL(e.h.TTL), hasp.WithSafetyMargin(e.h.TTL))
}

// A note is 1 KB of UTF-8 at most, and one that is accepted comes back as it was.
func testBadNotes(e *env) {
	c, name := e.intercepted(), e.name()
	for what, note := range map[string]string{
		"too long": strings.Repeat("n", 1025), "not UTF-8": "\xff", "too long with its escapes": strings.Repeat("\x01", 1024),
	} {
		_, err := c.Mutex(name, hasp.Note(note)).Lock(e.ctx())
		e.wantErr("a note that is "+what, err, hasp.ErrInvalid)
	}
	c.untouched()
	for _, note := range []string{"", strings.Repeat("n", 1024), strings.Repeat("\u00e9", 512), strings.Repeat("<", 1024), "\x01\x7f\u2028", "'\"\\\n;--"} {
		l := e.must(c.Mutex(name, hasp.Note(note)).Lock(e.ctx()))
		q, err := e.inspect(c, name)
		if err != nil || len(q.Holders) != 1 || q.Holders[0].Owner.Note != note {
			e.Errorf("note %.20q... came back as %+v, %v", note, q.Holders, err)
		}
		for _, entry := range e.list(c.Backend(), name) {
			if len(entry.Owner) > 2048 {
				e.Errorf("a note of %d bytes made an Owner of %d; a driver need not keep more than 2 KB", len(note), len(entry.Owner))
			}
		}
		e.release(l)
	}
}

// A value is 1 KB at most.
func testBadValues(e *env) {
	c, name := e.intercepted(), e.name()
	large := make([]byte, 1025)
	_, err := c.Election(name).Campaign(e.ctx(), large)
	e.wantErr("campaign with a large value", err, hasp.ErrInvalid)
	c.untouched()
	term, err := c.Election(name).Campaign(e.ctx(), large[:1024])
	if err != nil {
		e.Fatalf("campaign with 1 KB: %v", err)
	}
	e.wantErr("publishing a large value", term.Publish(e.ctx(), large), hasp.ErrInvalid)
	e.wantErr("publishing with a nil context", term.Publish(nil, nil), hasp.ErrInvalid) //lint:ignore SA1012 a nil context is the point
	e.leads(c, name, term, string(large[:1024]))
	e.release(term.Lease)
}

// Permits are from 1 to n, and n fits into the queue's arithmetic.
func testBadPermits(e *env) {
	c, name := e.intercepted(), e.name()
	for _, x := range []struct{ n, k int64 }{
		{0, 0}, {0, 1}, {-1, 1}, {1, 0}, {1, -1}, {1, 2}, {3, 4}, {driver.Whole, 1}, {1 << 62, 1}, {3, 1 << 62}, {-1 << 63, -1 << 63},
	} {
		s := c.Semaphore(name, x.n)
		_, err := s.Acquire(e.ctx(), x.k)
		e.wantErr("Acquire", err, hasp.ErrInvalid)
		_, err = s.TryAcquire(e.ctx(), x.k)
		e.wantErr("TryAcquire", err, hasp.ErrInvalid)
	}
	c.untouched()
}

// All clients must use the same capacity for a name while it is in use: another capacity is refused
// at once, even if its request would fit, and leaves nothing.
func testOtherKind(e *env) {
	b, name, c, other := e.backend(), e.name(), e.client(), e.client()
	held := e.must(permits(c, name, 3, 1)(e.ctx()))
	for what, lock := range map[string]acquire{
		"a semaphore of 5": permits(other, name, 5, 1), "a mutex": other.Mutex(name).Lock, "a try of the mutex": other.Mutex(name).TryLock,
		"the same client's mutex": c.Mutex(name).Lock,
	} {
		_, err := lock(e.ctx())
		e.wantErr(what+" under the name of a semaphore of 3", err, hasp.ErrMismatch)
	}
	if n := len(e.list(b, name)); n != 1 || !held.Held() {
		e.Errorf("%d entries, held %t, after the refusals", n, held.Held())
	}
	e.release(held)
	e.empty(b, name)
	e.release(e.must(other.Mutex(name).Lock(e.ctx())))
}

// S7: a closed client does nothing any more and says so; its leases are lost, its waits end, and
// closing again is harmless.
func testAfterClose(e *env) {
	b, name, c, other := e.backend(), e.name(), e.client(), e.client()
	held := e.must(c.Mutex(name).Lock(e.ctx()))
	waiting := c.queue(c.Mutex(name).Lock)
	next := other.queue(other.Mutex(name).Lock)
	for range 2 {
		if err := c.Close(); err != nil {
			e.Errorf("close: %v", err)
		}
	}
	e.release(next.lease())
	<-waiting.done
	e.wantErr("waiting while the client was closed", waiting.err, hasp.ErrClosed)
	e.wantErr("release after close", held.Release(e.ctx()), hasp.ErrLost)
	if held.Held() {
		e.Error("a lease is held after its client was closed")
	}
	for kind, lock := range e.everyKind(c, name) {
		_, err := lock(e.ctx())
		e.wantErr(kind+" after close", err, hasp.ErrClosed)
	}
	_, err := c.Inspect(e.ctx(), name)
	e.wantErr("inspect after close", err, hasp.ErrClosed)
	for _, err := range c.Names(e.ctx(), "") {
		e.wantErr("names after close", err, hasp.ErrClosed)
	}
	e.empty(b, name)
}
