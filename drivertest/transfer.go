package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// A held lease passes from client to client, and no other gets in between.
var transferTests = needing(needsAdopter, []test{
	{name: "Moved", run: testTransfer},
	{name: "Readers", needs: needsShared, run: testTransferReader},
	{name: "OneImporter", run: testTransferOnce},
	{name: "Unclaimed", run: testTransferUnclaimed},
	{name: "Adopt", run: testAdopt},
	{name: "AdoptRefused", run: testAdoptRefused},
	{name: "Killed", processes: true, run: testTransferKilled},
})

func needsAdopter(e *env) string {
	_, ok := e.session(e.backend(), nil).Ticket(e.whole(e.name())).(driver.Adopter)
	return unless(ok, "to hand a held entry on")
}

// export ends a lease here, and returns what another needs to take it over.
func (e *env) export(l *hasp.Lease) string {
	e.Helper()
	work := l.Context()
	text, err := l.Export()
	if err != nil {
		e.Fatalf("export: %v", err)
	}
	if l.Held() || work.Err() == nil {
		e.Error("S5: held after the export")
	}
	e.wantErr("after the export", l.Err(), hasp.ErrNotHeld)
	return text
}

// S1, S2, S6: the lease moves with its place and its token, the waiter behind it waits on,
// the old owner can do nothing to it any more, not even by closing, and the next token is
// higher.
func testTransfer(e *env) {
	b, name, c, other, waiter := e.backend(), e.name(), e.client(), e.client(), e.client()
	l := e.must(c.Mutex(name).Lock(e.ctx()))
	next := waiter.queue(waiter.Mutex(name).Lock)
	text := e.export(l)
	e.wantErr("release of what was exported", l.Release(e.ctx()), hasp.ErrNotHeld)
	next.blocked("the lock is on its way")
	got := e.must(other.Import(e.ctx(), text, hasp.Note("imported")))
	if !got.Held() || got.Name() != name || got.Token() != l.Token() || got.ID() == l.ID() {
		e.Errorf("imported %q, held %t, token %d of %d, id %s of %s", got.Name(), got.Held(), got.Token(), l.Token(), got.ID(), l.ID())
	}
	_, err := c.Import(e.ctx(), text)
	e.wantErr("a second import", err, hasp.ErrNotHeld)
	if q, err := other.Inspect(e.ctx(), name); err != nil || len(q.Holders) != 1 || q.Holders[0].Owner.Note != "imported" {
		e.Errorf("shown as %+v, %v", q, err)
	}
	if err := c.Close(); err != nil {
		e.Errorf("close of the exporter: %v", err)
	}
	e.lastsATerm(got)
	next.blocked("the importer holds")
	e.release(got)
	last := next.lease()
	if e.traits.Fencing && last.Token() <= got.Token() {
		e.violated("token %d after %d", last.Token(), got.Token())
	}
	e.release(last)
	e.empty(b, name)
}

// A reader is transferred among readers, and still keeps writers out.
func testTransferReader(e *env) {
	name, c, other := e.name(), e.client(), e.client()
	stays := e.must(c.RWMutex(name).RLock(e.ctx()))
	got := e.must(other.Import(e.ctx(), e.export(e.must(c.RWMutex(name).RLock(e.ctx())))))
	e.release(stays)
	_, err := c.RWMutex(name).TryLock(e.ctx())
	e.wantErr("a writer beside the imported reader", err, hasp.ErrBusy)
	e.release(e.must(c.RWMutex(name).TryRLock(e.ctx())))
	e.release(got)
	e.release(e.must(c.RWMutex(name).TryLock(e.ctx())))
}

// S1: of several clients with the same text one imports.
func testTransferOnce(e *env) {
	name := e.name()
	cs := e.clients(4)
	for range 3 {
		text := e.export(e.must(cs[0].Mutex(name).Lock(e.ctx())))
		var wg sync.WaitGroup
		var won atomic.Pointer[hasp.Lease]
		var wins atomic.Int32
		for _, c := range cs {
			wg.Go(func() {
				l, err := c.Import(e.ctx(), text)
				switch {
				case err == nil:
					wins.Add(1)
					won.Store(l)
				case !errors.Is(err, hasp.ErrNotHeld):
					e.Errorf("import: %v", err)
				}
			})
		}
		wg.Wait()
		if n := wins.Load(); n != 1 {
			e.Fatalf("%d imported the same lease", n)
		}
		e.release(won.Load())
	}
}

// L4: a lease that is not imported is given back while its exporter lives, and cannot be imported
// then.
func testTransferUnclaimed(e *env) {
	b, name, c, waiter := e.backend(), e.name(), e.client(), e.client()
	text := e.export(e.must(c.Mutex(name).Lock(e.ctx())))
	next := waiter.queue(waiter.Mutex(name).Lock)
	l := next.lease()
	_, err := waiter.Import(e.ctx(), text)
	e.wantErr("import of what another holds", err, hasp.ErrNotHeld)
	e.release(l)
	_, err = waiter.Import(e.ctx(), text)
	e.wantErr("import of what is free", err, hasp.ErrNotHeld)
	e.empty(b, name)
}

// S8: the answer is lost, and the same is asked again. What the old owner still sends finds
// nothing, and its session is told at the next renewal, as of any entry that is missing.
func testAdopt(e *env) {
	b, name := e.backend(), e.name()
	told := make(chan string, 16)
	s := e.session(b, func(id string, _ error) { told <- id })
	other := e.session(e.backend(), nil)
	r := e.whole(name)
	old, v := e.enter(s, r)
	v = e.holds(old, v)
	if p, ok := old.(driver.Publisher); ok && e.traits.Values {
		r.Value = []byte("stays")
		if err := e.once(p.Publish(e.ctx(), r.Value)); err != nil {
			e.Fatalf("publish: %v", err)
		}
	}
	mine := e.whole(name)
	t := other.Ticket(mine)
	for range 2 {
		got, err := t.(driver.Adopter).Adopt(e.ctx(), r.ID, v.Token)
		e.slowIfUnknown(err)
		if err != nil || !got.Held || got.Token != v.Token {
			e.Fatalf("adopt: %+v, %v", got, err)
		}
	}
	e.wantErr("leave of what was handed on", old.Leave(e.ctx()), driver.ErrGone)
	for _, session := range []driver.Session{s, other} {
		if _, err := e.renew(session); err != nil {
			e.Fatalf("renewal: %v", err)
		}
	}
	list := e.list(b, name)
	if len(list) != 1 || list[0].ID != mine.ID || list[0].Seq != v.Token || string(list[0].Value) != string(r.Value) ||
		list[0].Units != driver.Whole || list[0].Owner != mine.Owner {
		e.Errorf("listed: %+v", list)
	}
	for len(told) > 0 {
		if id := <-told; id != r.ID {
			e.Errorf("told that %q is gone, and handed on was %q", id, r.ID)
		}
	}
	e.leave(t)
	e.wantErr("adopt after leaving", adopting(e.ctx(), t, r.ID, v.Token), driver.ErrGone)
}

func adopting(ctx context.Context, t driver.Ticket, id string, seq uint64) error {
	_, err := t.(driver.Adopter).Adopt(ctx, id, seq)
	return err
}

// Only a live holding entry that matches the importer's text is adopted; and a refusal leaves
// nothing.
func testAdoptRefused(e *env) {
	b, name := e.backend(), e.name()
	s, other := e.session(b, nil), e.session(e.backend(), nil)
	r := e.whole(name)
	t, v := e.enter(s, r)
	v = e.holds(t, v)
	queue := []string{r.ID}
	type offer struct {
		r   driver.Request
		id  string
		seq uint64
	}
	offers := map[string]offer{
		"another id":   {e.whole(name), "absent-1", v.Token},
		"a long id":    {e.whole(name), strings.Repeat("i", 41), v.Token},
		"an odd id":    {e.whole(name), "x'\x00\xff", v.Token},
		"another seq":  {e.whole(name), r.ID, v.Token + 1},
		"another name": {e.whole(e.name()), r.ID, v.Token},
	}
	if e.traits.Shared { // otherwise hasp serve refuses it, before the store is asked
		offers["fewer units"] = offer{e.request(name, 1, driver.Whole), r.ID, v.Token}
	}
	if e.traits.FIFO { // otherwise a waiter has no entry in a queue
		behind := e.whole(name)
		e.enter(s, behind)
		queue = append(queue, behind.ID)
		offers["a waiter"] = offer{e.whole(name), behind.ID, e.list(b, name)[1].Seq}
	}
	for what, try := range offers {
		e.wantErr("adopt with "+what, adopting(e.ctx(), other.Ticket(try.r), try.id, try.seq), driver.ErrGone)
	}
	if got := ids(e.list(b, name)); !slices.Equal(got, queue) {
		e.Errorf("listed: %v, want %v", got, queue)
	}
	if err := e.once(s.Close(e.ctx())); err != nil {
		e.Fatalf("close: %v", err)
	}
	e.wantErr("adopt from a session that is closed", adopting(e.ctx(), other.Ticket(e.whole(name)), r.ID, v.Token), driver.ErrGone)
}

// S1: the exporter is killed once the text is out. What is left of its TTL is enough to import, and
// no other client gets in between, though the store removes all other entries of the dead one.
func testTransferKilled(e *env) {
	name, beside, c, waiter := e.name(), e.name(), e.client(), e.client()
	p := e.process(e.longTTL())
	p.do(order{Do: "lock", Name: name})
	was := p.hears("acquired")
	p.do(order{Do: "export"})
	text := p.hears("exported").Text
	p.do(order{Do: "lock", Name: beside})
	p.hears("acquired")
	next := waiter.queue(waiter.Mutex(name).Lock)
	p.kill()
	l := e.must(c.Import(e.ctx(), text))
	if e.traits.Fencing && l.Token() != was.Token {
		e.Errorf("token %d, exported was %d", l.Token(), was.Token)
	}
	e.release(e.must(c.Mutex(beside).Lock(e.ctx()))) // when the dead one's TTL has ended
	entries := e.list(e.backend(), name)
	if !l.Held() || len(entries) == 0 || e.traits.FIFO && len(entries) != 2 || entries[0].ID != l.ID() {
		e.Errorf("held %t (%v), and the store has %v", l.Held(), l.Err(), ids(entries))
	}
	next.blocked("the importer holds")
	e.release(l)
	e.release(next.lease())
}
