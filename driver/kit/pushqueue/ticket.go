package pushqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/signal"
)

// Ticket is the driver.Ticket of one entry.
type Ticket[E any] struct {
	session *Session[E]
	Request driver.Request
	Extra   E // the driver's

	// Guarded by the session's lock.
	sent      bool          // there may be an entry
	confirmed bool          // the store has answered that there is: it must not be made again
	held      bool          // and that it holds
	left      bool          // Leave was called: a late Enqueue must not make an orphan
	gone      bool          // the store has no such entry any more
	uncertain bool          // a request was not answered: it may still make the entry
	seq       uint64        // of the confirmed entry
	granted   uint64        // the Seq of a pushed grant, perhaps before our request was answered
	published uint64        // the number of the last value
	retry     time.Duration // for Wait: ask after this long
	poll      time.Duration // how often Wait asks by itself
	where     *string       // where the entry was made, or seen by a renewal since: see Renewed
	signal    signal.Signal
}

// Held reports whether the entry is known to hold. The caller has the lock.
func (t *Ticket[E]) Held() bool { return t.held }

// Confirmed reports whether the store has answered that there is an entry. The caller has the
// lock.
func (t *Ticket[E]) Confirmed() bool { return t.confirmed }

// Waits reports whether there is an entry that waits, and for which no grant was pushed. The
// caller has the lock.
func (t *Ticket[E]) Waits() bool { return t.confirmed && !t.held && !t.pushedLocked() }

// pushedLocked reports that a grant of the confirmed entry was pushed: see Session.Granted.
func (t *Ticket[E]) pushedLocked() bool { return t.confirmed && t.granted >= t.seq }

// Grant hands a grant to the ticket: see Session.Granted. The caller has the lock.
func (t *Ticket[E]) Grant(seq uint64) {
	t.granted = seq
	t.signal.Notify()
}

// AskAfter makes Wait return, and the core ask after d. The caller has the lock.
func (t *Ticket[E]) AskAfter(d time.Duration) {
	t.retry = d
	t.signal.Notify()
}

// Enqueue makes the entry, or asks for it once it is confirmed: a confirmed entry that is gone
// must not be made again.
//
// If the answer is lost, the request may still be under way to the store. The next request finds
// the entry by its ID.
func (t *Ticket[E]) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	s := t.session
	mode, err := s.register(t)
	if err != nil {
		return driver.Verdict{}, err
	}
	if v, ok := t.pushed(); ok {
		return v, nil
	}
	granted := t.takeGrant()
	a, err := s.store.Enter(ctx, t, mode)
	if err != nil {
		t.returnGrant(granted)
	}
	return t.apply(a, err)
}

// takeGrant takes the grant that a request is about to ask for, where a grant needs that. One that
// is pushed from here on is kept, and asked for by the next request: it may be newer than the
// answer. One that stayed although the store answers "wait", because it has forgotten the grant,
// would be asked for again and again.
func (t *Ticket[E]) takeGrant() (seq uint64) {
	s := t.session
	if !s.Confirm { // which is set before the first use
		return 0
	}
	s.Lock()
	defer s.Unlock()
	seq, t.granted = t.granted, 0
	return seq
}

// returnGrant is for a request that has told nothing.
func (t *Ticket[E]) returnGrant(seq uint64) {
	if seq == 0 {
		return
	}
	t.session.Lock()
	defer t.session.Unlock()
	if t.granted == 0 {
		t.granted = seq
	}
}

// apply updates the ticket with an answer and makes the verdict.
func (t *Ticket[E]) apply(a Answer, err error) (driver.Verdict, error) {
	s := t.session
	switch {
	case err == nil && a.State == Dead:
		return driver.Verdict{}, s.Dead()
	case err == nil && a.State == 0:
		err = errUnexpected
	}
	s.Lock()
	defer s.Unlock()
	switch {
	case err != nil:
		t.uncertain = t.uncertain || !refused(err)
		if !t.uncertain && !t.confirmed { // there is nothing to renew, and nothing to leave
			s.dropLocked(t)
		}
		return driver.Verdict{}, err
	case t.left || s.closed:
		// Leave and Close have removed the entry that this request made. If the request arrived
		// after them, the entry's expiry removes it, or the next renewal.
		return driver.Verdict{}, ErrClosed
	}
	switch a.State {
	case Gone:
		s.goneLocked(t)
		return driver.Verdict{}, fmt.Errorf("%w: no such entry", driver.ErrGone)
	case Busy:
		s.dropLocked(t)
		return driver.Verdict{Holder: a.Holder, Quarantine: a.Quarantine}, nil
	}
	t.confirmed, t.uncertain, t.seq, t.poll = true, false, a.Seq, a.Poll
	if t.pushedLocked() && !s.Confirm { // else Wait asks: see known
		t.held, t.seq = true, t.granted
	}
	t.held = t.held || a.State == Held
	if !t.held && s.Waiting != nil {
		s.Waiting()
	}
	return t.verdictLocked(a), nil
}

func (t *Ticket[E]) verdictLocked(a Answer) driver.Verdict {
	if t.held {
		return driver.Verdict{Held: true, Token: t.seq}
	}
	return driver.Verdict{Retry: a.Retry, Holder: a.Holder, Place: a.Place}
}

// pushed makes the verdict without a request, after a pushed grant that needs no confirmation.
func (t *Ticket[E]) pushed() (driver.Verdict, bool) {
	s := t.session
	s.Lock()
	defer s.Unlock()
	if t.held || t.gone || s.closed || !t.pushedLocked() || s.Confirm {
		return driver.Verdict{}, false
	}
	t.held, t.seq = true, t.granted
	return t.verdictLocked(Answer{}), true
}

// Wait returns on a pushed grant or on the result of a renewal, and polls where the store pushes
// nothing. Its stack is small where it waits: there may be ten thousand that do.
func (t *Ticket[E]) Wait(ctx context.Context) (driver.Verdict, error) {
	for poll := false; ; {
		if v, known, err := t.known(ctx, poll); known {
			return v, err
		}
		select {
		case <-t.signal.C():
		case <-t.timer():
			poll = true
		case <-t.session.Done.Done():
		case <-ctx.Done():
		}
	}
}

// known returns what needs no waiting: what was pushed, else what the store answers when it is time
// to poll, else that ctx has ended.
func (t *Ticket[E]) known(ctx context.Context, poll bool) (v driver.Verdict, known bool, err error) {
	if v, ok := t.pushed(); ok {
		return v, true, nil
	}
	s := t.session
	s.Lock()
	switch {
	case t.gone || s.closed:
		known, err = true, driver.ErrGone
	case !t.held && t.pushedLocked(): // the grant needs a confirmation
		poll = true
	case t.held || t.retry > 0:
		v, known = t.verdictLocked(Answer{Retry: t.retry}), true
		t.retry = 0
	}
	s.Unlock()
	switch {
	case known:
		return v, true, err
	case poll:
		v, err = t.Enqueue(ctx)
		return v, true, err
	}
	return v, ctx.Err() != nil, ctx.Err()
}

// timer fires after about the time to poll, or never if that is 0. Its jitter spreads the requests
// of tickets that began to wait together.
func (t *Ticket[E]) timer() <-chan time.Time {
	t.session.Lock()
	d := t.poll
	t.session.Unlock()
	if d <= 0 {
		return nil
	}
	return time.After(d*3/4 + rand.N(d/2)) // nothing has to stop it: it is collected with its channel
}

// Leave removes the entry. From now on the ticket ignores answers that would bring the entry
// back. Until the store answers, the session keeps the ticket, so that a renewal does not take its
// entry for an orphan: see Renewed.
func (t *Ticket[E]) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.Lock()
	sent, again := t.sent, t.left
	t.left = true
	s.Unlock()
	if !sent {
		return driver.ErrGone
	}
	err := s.store.Leave(ctx, t, again)
	if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrForgotten) {
		s.Lock()
		defer s.Unlock()
		if s.tickets[t.Request.ID] == t {
			delete(s.tickets, t.Request.ID) // sent stays: a repeated Leave asks the store
		}
	}
	return err
}

// Publish replaces the value of the held entry. Each value has a number: see Store.
func (t *Ticket[E]) Publish(ctx context.Context, value []byte) error {
	s := t.session
	s.Lock()
	t.published++
	number, held := t.published, t.held
	s.Unlock()
	if !held {
		return errWaits
	}
	return found(s.store.Publish(ctx, t, value, number))
}

// Downgrade makes the held entry smaller.
func (t *Ticket[E]) Downgrade(ctx context.Context, units int64) error {
	t.session.Lock()
	held := t.held
	t.session.Unlock()
	if !held {
		return errWaits
	}
	return found(t.session.store.Downgrade(ctx, t, units))
}

// errWaits answers what only a holder may ask. A store that has forgotten a grant in a crash takes a
// holder for a waiter, and is right to let it go on; here it is known who was told that it holds.
var errWaits = fmt.Errorf("%w: no such entry holds", driver.ErrGone)

func found(there bool, err error) error {
	if err == nil && !there {
		return driver.ErrGone
	}
	return err
}

// Adopt takes over another session's entry. If the answer is lost, the next call finds the entry
// under our ID. Our renewals expect the entry from the moment it is confirmed; those of its old
// owner find it missing.
func (t *Ticket[E]) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if !driver.ValidID(id) {
		return driver.Verdict{}, driver.ErrGone // no entry has such an ID
	}
	s := t.session
	s.Lock()
	waits := t.confirmed && !t.held
	s.Unlock()
	if waits {
		return driver.Verdict{}, errWaits
	}
	if _, err := s.register(t); err != nil {
		return driver.Verdict{}, err
	}
	a, err := s.store.Adopt(ctx, t, id, seq)
	if err == nil && a.State == Held {
		s.Lock()
		t.published = max(t.published, a.Number)
		s.Unlock()
	}
	return t.apply(a, err)
}
