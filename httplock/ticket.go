package httplock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// ticket is a lock of a session at the server. Its number makes a repeated request find the same
// entry.
type ticket struct {
	s *session
	r driver.Request

	// Guarded by the session's mu.
	number    uint64 // 0: nothing was sent, or the server has said that nothing is left of it
	confirmed bool   // the server has answered that there is an entry
	uncertain bool   // a request was not answered
	left      bool   // Leave was called
	released  bool   // and confirmed
	moved     bool   // before it was confirmed: its id may be an entry of another session, and is not used again
	lost      error
	orphaned  bool   // it was lost with its server: the entry may be there until its time is over
	holds     bool   // by the server's newest answer
	token     uint64 // 0 if its store has none
	published uint64
	granted   bool          // by an event: true also where the answer to a request that came before is late
	asksAgain bool          // by an event: the server waits no longer
	news      chan struct{} // has an element when Wait should look
	named     string        // the server's name of the entry, if it is not ours
	at        location      // of its entry, since it was confirmed
	to        location      // that it is moved to
	toUnits   int64         // that it is asked for with there
	smaller   int64         // the units of the newest Downgrade that may have been done; 0: there was none
}

func (t *ticket) gone() error {
	if t.lost != nil {
		return t.lost
	}
	return fmt.Errorf("%w: it has left", driver.ErrGone)
}

func (t *ticket) loseLocked(err error) {
	t.lost = err
	t.dropLocked()
	t.wake()
}

// dropLocked forgets a ticket that has no entry.
func (t *ticket) dropLocked() {
	if t.s.tickets[t.number] == t {
		delete(t.s.tickets, t.number)
	}
	t.unnameLocked()
}

// nameLocked notes the entry's name in the store. A token without the right to operate cannot
// choose it, and the core knows its entries by its own.
func (t *ticket) nameLocked(entry string) {
	if entry == "" || entry == t.r.ID || t.named != "" {
		return
	}
	t.named = entry
	b := t.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ids == nil {
		b.ids = map[string]string{}
	}
	b.ids[entry] = t.r.ID
}

func (t *ticket) unnameLocked() {
	if t.named == "" {
		return
	}
	t.s.b.mu.Lock()
	defer t.s.b.mu.Unlock()
	delete(t.s.b.ids, t.named)
	t.named = ""
}

func (t *ticket) requestLocked() httpapi.Acquire {
	r := httpapi.Acquire{
		Name: t.r.Name, Units: t.r.Units, Capacity: t.r.Capacity, Entry: t.r.ID, Owner: t.r.Owner, Since: t.r.Since, Value: t.r.Value, NoWait: t.r.NoWait,
	}
	if t.moved {
		r.Entry = ""
	}
	return r
}

// Enqueue makes the entry or asks for it: the number tells the server which.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := t.s.send(t); err != nil {
		return driver.Verdict{}, err
	}
	var a httpapi.Lock
	r := request{method: http.MethodPut, of: t, bodyLocked: func() any { return t.requestLocked() }}
	if ttl := t.s.options.TTL; t.r.NoWait { // a store without a clock may have to observe for so long that a holder is dead
		r.wait = ttl + ttl/100
	}
	id, err := t.s.callAt(ctx, r, &a)
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	if t.leftBehindLocked(id) && !unchanged(err) {
		t.orphanLocked()
	}
	switch {
	case t.lost != nil || t.left: // it has overtaken the answer
		return driver.Verdict{}, t.gone()
	case err == nil && a.State == httpapi.Busy:
		t.forgetLocked()
	case err == nil:
		t.confirmed, t.uncertain = true, false
		if t.granted && a.State == httpapi.Waiting { // the event has overtaken this answer
			a = httpapi.Lock{State: httpapi.Held, Token: t.token, Entry: a.Entry}
		}
		t.noteLocked(a)
		if id == t.s.id { // or it was adopted meanwhile, and is known to be there
			t.at = location{id, t.number, cmp.Or(a.Entry, t.r.ID)}
			t.nameLocked(a.Entry)
		}
	case errors.Is(err, driver.ErrGone):
		t.loseLocked(err)
		return driver.Verdict{}, err
	case t.confirmed || t.uncertain || !unchanged(err):
		t.uncertain = !t.confirmed
		return driver.Verdict{}, err
	default: // nothing was made, and the number is used up
		t.forgetLocked()
		return driver.Verdict{}, err
	}
	return verdict(a)
}

// forgetLocked is for a ticket of which nothing is at the server. Another attempt takes a new
// number.
func (t *ticket) forgetLocked() {
	t.dropLocked()
	t.number, t.uncertain = 0, false
}

// unchanged reports an answer by which nothing was done.
func unchanged(err error) bool {
	return errors.Is(err, driver.ErrMismatch) || errors.Is(err, driver.ErrUnsupported) || errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrInvalid)
}

// leftBehindLocked reports that an answer is from a session that this one has left while the answer
// was on its way, without the entry.
func (t *ticket) leftBehindLocked(id string) bool {
	return t.lost == nil && id != t.s.id && t.at.session != t.s.id
}

// noteLocked notes whether the lock is held.
func (t *ticket) noteLocked(a httpapi.Lock) {
	t.holds, t.token = a.State == httpapi.Held, 0
	if t.holds {
		t.token = a.Token
	}
}

func verdict(a httpapi.Lock) (driver.Verdict, error) {
	switch a.State {
	case httpapi.Held:
		return driver.Verdict{Held: true, Token: a.Token}, nil
	case httpapi.Busy:
		return driver.Verdict{Retry: time.Duration(a.Retry) * time.Millisecond, Holder: a.Holder, LooksOver: a.LooksOver, Quarantine: time.Duration(a.Quarantine) * time.Millisecond}, nil
	case httpapi.Waiting: // without Retry: where the store has to be asked again, the server does it
		return driver.Verdict{Holder: a.Holder, Place: a.Place, Quarantine: time.Duration(a.Quarantine) * time.Millisecond}, nil
	}
	return driver.Verdict{}, fmt.Errorf("the server answers that the lock is %q", a.State)
}

// Wait waits for the session's events: the server waits for the store's push, and asks it where
// that is needed. After an Enqueue that was not answered it asks anew: the server may not know the
// lock yet, and its "gone" would have an entry forgotten that the late request is about to make.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	for {
		t.s.mu.Lock()
		gone, unanswered, granted, again, token := t.left || t.lost != nil || t.number == 0, !t.confirmed, t.granted, t.asksAgain, t.token
		err := t.gone()
		t.asksAgain = false
		t.s.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			return driver.Verdict{}, ctx.Err()
		case gone:
			return driver.Verdict{}, err
		case unanswered:
			return t.Enqueue(ctx)
		case granted:
			return driver.Verdict{Held: true, Token: token}, nil
		case again:
			return driver.Verdict{}, nil // the core asks, and the answer says why
		}
		select {
		case <-t.news:
		case <-t.s.done.Done():
			return driver.Verdict{}, errClosed
		case <-ctx.Done():
		}
	}
}

// wake has a Wait look, or the next one.
func (t *ticket) wake() {
	select {
	case t.news <- struct{}{}:
	default: // it is about to
	}
}

// Leave removes the entry. From now on no answer brings it back.
//
// A server that does not know the session has forgotten it, or was started anew: the entry may be
// in the store until its TTL is over, so that nothing is known.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.s
	s.mu.Lock()
	t.left = true
	t.wake()
	done := t.number == 0 || t.released || s.ended || t.lost != nil
	orphaned := t.orphaned
	s.mu.Unlock()
	switch {
	case orphaned:
		return errOrphaned
	case done:
		return fmt.Errorf("%w: nothing is left of it", driver.ErrGone)
	}
	err := s.call(ctx, request{method: http.MethodDelete, of: t}, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.orphaned:
		return errOrphaned
	case err == nil:
		t.released = true
		t.dropLocked()
	case sessionGone(err):
		t.dropLocked()
		return errOrphaned
	case errors.Is(err, driver.ErrGone), errors.Is(err, driver.ErrForgotten):
		t.dropLocked()
	}
	return err
}

var errOrphaned = fmt.Errorf("%w: the server has no such session any more", driver.ErrForgotten)

// Publish implements driver.Publisher. Its values are numbered: one that the network delivers late
// must not take the place of a later one.
func (p publisher) Publish(ctx context.Context, value []byte) error {
	p.t.s.mu.Lock()
	p.t.published++
	n := p.t.published
	p.t.s.mu.Unlock()
	return p.t.change(ctx, http.MethodPut, "/value", httpapi.Value{Value: value, Number: n})
}

// Downgrade implements driver.Downgrader. It is noted before it is sent: the session may move while
// the answer is on its way, or instead of it, and adopts the lock with the units that it has by
// then. It stays noted when it was done, since an adoption may have been asked for with those of
// before.
func (d downgrader) Downgrade(ctx context.Context, units int64) error {
	t := d.t
	t.s.mu.Lock()
	before := t.smaller
	t.smaller = units
	t.s.mu.Unlock()
	err := t.change(ctx, http.MethodPost, "/downgrade", httpapi.Smaller{Units: units})
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	switch {
	case err == nil:
		t.r.Units = min(t.r.Units, units)
	case unchanged(err) && t.r.Units <= units:
		// An adoption has found it done. Its answer came while the session moved, and what is
		// refused is the repeated request.
		return nil
	case unchanged(err):
		t.smaller = before
	}
	return err
}

func (t *ticket) change(ctx context.Context, method, more string, body any) error {
	t.s.mu.Lock()
	gone := t.left || t.lost != nil || t.number == 0
	err := t.gone()
	t.s.mu.Unlock()
	if gone {
		return err
	}
	return t.s.call(ctx, request{method: method, of: t, more: more, body: body}, nil)
}
