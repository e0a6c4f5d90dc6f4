package drivertest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// An ID is chosen by the core, and no two entries ever share one; but a client of `hasp serve` may
// choose its own, and so another's. That must get it nothing: what an entry is found by is its
// name, its ID and its session.
var idTests = []test{
	{name: "OfAnotherName", run: testIDOfAnotherName},
	{name: "OfAnotherSession", run: testIDOfAnotherSession},
	{name: "OfAnotherSessionsWaiter", needs: needsFIFO, run: testIDOfAnothersWaiter},
	{name: "Evicted", needs: needsEvicter, run: testIDEvicted},
}

// victim is an entry whose ID another client uses.
type victim struct {
	b       driver.Backend
	session driver.Session
	ticket  driver.Ticket
	request driver.Request
	verdict driver.Verdict
	told    chan string
}

// victim enters a name, with a value where the store keeps them.
func (e *env) victim(name string) *victim {
	e.Helper()
	v := &victim{b: e.backend(), request: e.whole(name), told: make(chan string, 16)}
	if e.traits.Values {
		v.request.Value = []byte("mine")
	}
	v.session = e.session(v.b, func(id string, _ error) { v.told <- id })
	v.ticket, v.verdict = e.enter(v.session, v.request)
	return v
}

// untouched fails if anything of the victim's entry has changed: in the store, or by what its owner
// is told.
func (v *victim) untouched(e *env, after string) {
	e.Helper()
	var found []driver.Entry
	for _, entry := range e.list(v.b, v.request.Name) {
		if entry.ID == v.request.ID && entry.Owner == v.request.Owner {
			found = append(found, entry)
		}
	}
	switch {
	case len(found) != 1 && (e.traits.FIFO || v.verdict.Held && e.traits.Fencing):
		e.Fatalf("after %s the entry is listed %d times: %s", after, len(found), describe(e.list(v.b, v.request.Name)))
	case len(found) != 1:
	case e.traits.Fencing && v.verdict.Held && found[0].Seq != v.verdict.Token,
		found[0].Units != v.request.Units, e.traits.Values && string(found[0].Value) != string(v.request.Value):
		e.Fatalf("after %s the entry is %+v, and it was entered as %+v", after, found[0], v.request)
	}
	if got, err := e.ask(v.ticket); err != nil || got.Held != v.verdict.Held || got.Token != v.verdict.Token {
		e.Fatalf("after %s its owner is told %+v, %v; before it was %+v", after, got, err, v.verdict)
	}
	if _, err := e.renew(v.session); err != nil {
		e.Fatalf("after %s its owner's renewal says: %v", after, err)
	}
	for len(v.told) > 0 {
		e.Fatalf("after %s its owner is told that %q is gone", after, <-v.told)
	}
}

// intruder is a ticket of another session with the victim's ID, under any name.
type intruder struct {
	session driver.Session
	ticket  driver.Ticket
	request driver.Request
	refused bool // its ID: hasp serve lets no client use one that is another's
}

func (v *victim) intruder(e *env, name string) *intruder {
	e.Helper()
	i := &intruder{request: e.whole(name)}
	i.request.ID, i.request.Owner = v.request.ID, `{"program":"intruder"}`
	i.session = e.session(e.backend(), nil)
	i.ticket = i.session.Ticket(i.request)
	return i
}

// asks enqueues, and reports what it got.
func (i *intruder) asks(e *env) driver.Verdict {
	e.Helper()
	v, err := e.ask(i.ticket)
	if i.refused = err != nil; i.refused {
		e.Logf("refused: %v", err)
	}
	return v
}

// verbs makes every other request that a ticket can, and looks at the victim after each of them.
func (i *intruder) verbs(e *env, v *victim) {
	e.Helper()
	note := func(what string, err error) {
		e.Helper()
		if err != nil {
			e.Logf("%s: %v", what, err)
		}
		v.untouched(e, what+" by another session")
	}
	if p, ok := i.ticket.(driver.Publisher); ok && e.traits.Values {
		note("a publication", p.Publish(e.ctx(), []byte("the intruder's")))
	}
	if d, ok := i.ticket.(driver.Downgrader); ok && e.traits.Shared {
		note("a downgrade", d.Downgrade(e.ctx(), 1))
	}
	_, err := i.session.KeepAlive(e.ctx())
	note("a renewal", err)
	note("a departure", i.ticket.Leave(e.ctx()))
	_, err = i.session.KeepAlive(e.ctx())
	note("a renewal after it", err)
	note("the end", i.session.Close(e.ctx()))
}

// leaves ends the test: the victim publishes and gives its entry back as if nothing had been.
func (v *victim) leaves(e *env) {
	e.Helper()
	if p, ok := v.ticket.(driver.Publisher); ok && e.traits.Values {
		if err := e.once(p.Publish(e.ctx(), []byte("last"))); err != nil {
			e.Errorf("publish: %v", err)
		}
	}
	e.leave(v.ticket)
	e.empty(v.b, v.request.Name)
}

// S1, S2, S9: under another name the ID is another entry, alone in its queue or not.
func testIDOfAnotherName(e *env) {
	v := e.victim(e.name())
	alone := v.intruder(e, e.name())
	got := alone.asks(e)
	switch {
	case alone.refused:
	case !got.Held:
		e.Errorf("a free name was not granted: %+v", got)
	default:
		list := e.list(v.b, alone.request.Name)
		if len(list) != 1 || e.traits.Fencing && list[0].Seq != got.Token {
			e.Errorf("granted %+v, and listed are %s", got, describe(list))
		}
	}
	v.untouched(e, "an entry under another name")

	// A client behind either of them waits, and is granted. An ID that had to be unique would keep
	// it out.
	if !alone.refused {
		for _, name := range []string{v.request.Name, alone.request.Name} {
			next, verdict := e.enter(e.session(e.backend(), nil), e.whole(name))
			if verdict.Held {
				e.violated("granted behind a holder: %+v", verdict)
			}
			v.untouched(e, "an entry behind one of the two")
			if err := e.once(next.Leave(e.ctx())); err != nil && (e.traits.FIFO || !errors.Is(err, driver.ErrGone)) {
				e.Errorf("leave of a waiter: %v", err) // where there is no queue it may have no entry
			}
		}
	}

	// Where the name is taken, it waits, and is not told what the ID has elsewhere.
	taken := e.name()
	holder, _ := e.enter(e.session(e.backend(), nil), e.whole(taken))
	waits := v.intruder(e, taken)
	if got := waits.asks(e); got.Held {
		e.violated("granted what another holds: %+v", got)
	}
	if got := waits.asks(e); got.Held {
		e.violated("granted what another holds, asked again: %+v", got)
	}
	v.untouched(e, "a waiter under another name")
	if list := e.list(v.b, taken); !waits.refused && e.traits.FIFO && (len(list) != 2 || list[1].Owner != waits.request.Owner) {
		e.Errorf("behind the holder are %s", describe(list))
	}
	waits.adopts(e, v)
	waits.verbs(e, v)
	alone.verbs(e, v)
	e.leave(holder)
	e.empty(v.b, taken)
	e.empty(v.b, alone.request.Name)
	v.leaves(e)
}

// adopts asks for entries of the victim's ID where there are none.
func (i *intruder) adopts(e *env, v *victim) {
	e.Helper()
	mine := e.whole(i.request.Name)
	a, ok := i.session.Ticket(mine).(driver.Adopter)
	if !ok || i.refused {
		return
	}
	if got, err := a.Adopt(e.ctx(), v.request.ID, v.verdict.Token); err == nil {
		e.violated("adopted %+v by the ID and the token of an entry under another name", got)
	}
	v.untouched(e, "an adoption under another name")
}

// S1: another session's entry under the same name is not found by any request.
func testIDOfAnotherSession(e *env) {
	v := e.victim(e.name())
	for _, noWait := range []bool{true, false} {
		i := v.intruder(e, v.request.Name)
		i.request.NoWait = noWait
		i.ticket = i.session.Ticket(i.request)
		for range 2 {
			if got := i.asks(e); got.Held {
				e.violated("granted what another session holds: %+v", got)
			}
		}
		v.untouched(e, "a request of another session")
		i.verbs(e, v)
	}
	v.leaves(e)
}

// L2: and a waiter's keeps its place.
func testIDOfAnothersWaiter(e *env) {
	name := e.name()
	holder, _ := e.enter(e.session(e.backend(), nil), e.whole(name))
	v := e.victim(name)
	i := v.intruder(e, name)
	if got := i.asks(e); got.Held {
		e.violated("granted what another holds: %+v", got)
	}
	v.untouched(e, "a request of another session")
	i.verbs(e, v)
	e.leave(holder)
	v.verdict = e.holds(v.ticket, driver.Verdict{})
	v.leaves(e)
}

// O1: an operator's request finds an entry by its name and its ID. What cannot be an ID of ours
// finds nothing, and is no error of the store's.
func testIDEvicted(e *env) {
	v := e.victim(e.name())
	other, _ := e.enter(e.session(e.backend(), nil), e.whole(e.name()))
	for what, id := range map[string]string{
		"of another name": e.whole("").ID, "of 41 bytes": strings.Repeat("i", 41), "of 4096 bytes": strings.Repeat("i", 4096),
		"with a quote": "x'--", "with a NUL": "x\x00", "that is not UTF-8": "x\xff", "with a space": v.request.ID + " ",
		"in capitals": strings.ToUpper(v.request.ID), "with a wildcard": "%", "with a slash": "../" + v.request.ID,
	} {
		e.evictsNothing(v, v.request.Name, id, "an ID "+what)
	}
	e.evictsNothing(v, e.name(), v.request.ID, "the ID from another name")
	e.leave(other)
	v.leaves(e)
}

// evictsNothing evicts with and without a note.
func (e *env) evictsNothing(v *victim, name, id, what string) {
	e.Helper()
	e.wantErr(fmt.Sprintf("evict of %s", what), e.evict(v.b, name, id), driver.ErrGone)
	e.wantErr(fmt.Sprintf("evict with a note of %s", what), v.b.(driver.Evicter).Evict(e.ctx(), name, id, "why"), driver.ErrGone)
	v.untouched(e, "an eviction of "+what)
}
