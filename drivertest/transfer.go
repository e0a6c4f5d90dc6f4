package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// A held entry passes from session to session, and no other gets in between.
var transferTests = needing(needsAdopter, []test{
	{name: "Moved", run: testMoved},
	{name: "Readers", needs: needsShared, run: testAdoptReader},
	{name: "OneAdopter", run: testAdoptOnce},
	{name: "Adopt", run: testAdopt},
	{name: "AdoptRefused", run: testAdoptRefused},
	{name: "Killed", processes: true, run: testAdoptKilled},
})

func needsAdopter(e *env) string {
	_, ok := e.session(e.backend(), nil).Ticket(e.whole(e.name())).(driver.Adopter)
	return unless(ok, "to hand a held entry on")
}

// adopts has a session take over an entry.
func (e *env) adopts(s driver.Session, mine driver.Request, id string, token uint64) driver.Ticket {
	e.Helper()
	t := s.Ticket(mine)
	v, err := t.(driver.Adopter).Adopt(e.ctx(), id, token)
	e.slowIfUnknown(err)
	if err != nil || !v.Held || v.Token != token {
		e.Fatalf("adopt: %+v, %v", v, err)
	}
	return t
}

// S1, S2: the entry moves with its place and its token, the waiter behind it waits on, the old
// session can do nothing to it any more, not even by closing, and the next token is higher.
func testMoved(e *env) {
	b, name, waiter := e.backend(), e.name(), e.client()
	s, other := e.session(b, nil), e.session(e.backend(), nil)
	r, mine := e.whole(name), e.whole(name)
	old, v := e.enter(s, r)
	v = e.holds(old, v)
	next := waiter.queue(waiter.Mutex(name).Lock)
	t := e.adopts(other, mine, r.ID, v.Token)
	next.blocked("the entry has moved")
	if err := e.once(s.Close(e.ctx())); err != nil {
		e.Fatalf("close of the session before: %v", err)
	}
	if _, err := e.renew(other); err != nil {
		e.Fatalf("renewal: %v", err)
	}
	next.blocked("another session has adopted the lock")
	e.leave(t)
	last := next.lease()
	if e.traits.Fencing && last.Token() <= v.Token {
		e.violated("token %d after %d", last.Token(), v.Token)
	}
	e.release(last)
	e.empty(b, name)
}

// A reader moves among readers, and still keeps writers out.
func testAdoptReader(e *env) {
	name, c := e.name(), e.client()
	stays := e.must(c.RWMutex(name).RLock(e.ctx()))
	r := e.request(name, 1, driver.Whole)
	old, v := e.enter(e.session(e.backend(), nil), r)
	v = e.holds(old, v)
	t := e.adopts(e.session(e.backend(), nil), e.request(name, 1, driver.Whole), r.ID, v.Token)
	e.release(stays)
	_, err := c.RWMutex(name).TryLock(e.ctx())
	e.wantErr("a writer beside the adopted reader", err, hasp.ErrBusy)
	e.release(e.must(c.RWMutex(name).TryRLock(e.ctx())))
	e.leave(t)
	e.release(e.must(c.RWMutex(name).TryLock(e.ctx())))
}

// S1: of several sessions that ask for the same entry at once one adopts it.
func testAdoptOnce(e *env) {
	name, from := e.name(), e.session(e.backend(), nil)
	var to []driver.Session
	for range 4 {
		to = append(to, e.session(e.backend(), nil))
	}
	for range 3 {
		r := e.whole(name)
		old, v := e.enter(from, r)
		v = e.holds(old, v)
		var wg sync.WaitGroup
		var winner atomic.Pointer[driver.Ticket]
		var wins atomic.Int32
		for _, s := range to {
			t := s.Ticket(e.whole(name))
			wg.Go(func() {
				err := adopting(e.ctx(), t, r.ID, v.Token)
				e.slowIfUnknown(err)
				switch {
				case err == nil:
					wins.Add(1)
					winner.Store(&t)
				case !errors.Is(err, driver.ErrGone):
					e.Errorf("adopt: %v", err)
				}
			})
		}
		wg.Wait()
		if n := wins.Load(); n != 1 {
			e.Fatalf("%d adopted the same entry", n)
		}
		e.leave(*winner.Load())
	}
}

// S8: the answer is lost, and the same is asked again. What the old session still sends finds
// nothing, and it is told at the next renewal, as of any entry that is missing.
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
	t := e.adopts(other, mine, r.ID, v.Token)
	if again, err := t.(driver.Adopter).Adopt(e.ctx(), r.ID, v.Token); e.once(err) != nil || !again.Held || again.Token != v.Token {
		e.Fatalf("adopt again: %+v, %v", again, err)
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

// Only a live holding entry that is as it was asked for is adopted; and a refusal leaves nothing.
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

// S1: the process that holds is killed. What is left of its TTL is enough to adopt, and no other
// client gets in between, though the store removes all other entries of the dead one.
func testAdoptKilled(e *env) {
	name, beside, c, waiter := e.name(), e.name(), e.client(), e.client()
	p := e.process(e.longTTL())
	p.do(order{Do: "lock", Name: name})
	was := p.hears("acquired")
	p.do(order{Do: "lock", Name: beside})
	p.hears("acquired")
	next := waiter.queue(waiter.Mutex(name).Lock)
	p.kill()
	// For longer than the dead one: nothing renews it.
	opened := time.Now()
	s, granted := e.open(e.backend(), driver.SessionOptions{TTL: 3 * e.longTTL(), Gone: func(string, error) {}})
	defer func() { e.slowIfOver(opened, granted) }()
	mine := e.whole(name)
	t := e.adopts(s, mine, was.ID, was.Token)
	e.release(e.must(c.Mutex(beside).Lock(e.ctx()))) // when the dead one's TTL has ended
	entries := e.list(e.backend(), name)
	if len(entries) == 0 || e.traits.FIFO && len(entries) != 2 || entries[0].ID != mine.ID {
		e.Errorf("the store has %v", ids(entries))
	}
	next.blocked("it was adopted")
	e.leave(t)
	e.release(next.lease())
	if err := e.once(s.Close(e.ctx())); err != nil {
		e.Errorf("close: %v", err)
	}
}
