package caslock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

// attempt is a write whose answer is not known: it may still be done, until the record has another
// version than old.
type attempt struct {
	sent bootclock.Instant
	old  Version
}

// ticket is one request for a name. Its writes run one at a time, in turn, but for Leave, which
// waits for none of them: one that hangs is refused by the store once Leave's write, or anybody's,
// has changed the version.
type ticket struct {
	session *session
	request driver.Request
	turn    chan struct{} // has a token while a write is under way
	asking  atomic.Bool   // a renewal beside KeepAlive is under way
	mark    string        // begins the nonces of what this ticket writes with its ID

	mu       sync.Mutex
	record   Record             // ours, as far as we know
	version  Version            // of that record
	counts   bootclock.Instant  // when the write was sent from which our TTL counts
	tried    map[string]attempt // writes with our ID, by nonce
	freed    map[string]bool    // nonces of writes that free the record, without an answer
	sent     bool               // a write with our ID was sent
	held     bool               // the store has said so
	reported bool               // the caller knows the token
	left     bool
}

// take waits for the turn to write.
func (t *ticket) take(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	select {
	case t.turn <- struct{}{}:
		return func() { <-t.turn }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// countsFrom is when the write was sent from which the TTL counts; if the store has confirmed none,
// the first that it may have done.
func (t *ticket) countsFrom() bootclock.Instant {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := t.counts
	if from.IsZero() {
		for _, a := range t.tried {
			if from.IsZero() || a.sent.Before(from) {
				from = a.sent
			}
		}
	}
	return from
}

// swap writes a record that has our ID. before is the stamp of that which it renews, if it does.
func (t *ticket) swap(ctx context.Context, r Record, before time.Time, old Version) error {
	s := t.session
	r = s.backend.stamp(r, before)
	r.Nonce = t.mark + r.Nonce
	s.mu.Lock()
	t.mu.Lock()
	refused := t.left || s.closed
	if !refused { // noted before it is sent: KeepAlive covers it, and Leave undoes it
		t.sent, t.tried[r.Nonce] = true, attempt{s.backend.clock.now(), old}
		s.tickets[t.request.ID] = t
	}
	t.mu.Unlock()
	s.mu.Unlock()
	if refused {
		return fmt.Errorf("%w: it has left", driver.ErrGone)
	}
	v, err := s.backend.swap(ctx, r, old)
	switch {
	case err == nil:
		t.ours(r, v)
	case errors.Is(err, driver.ErrRefused): // nothing was changed
		t.mu.Lock()
		delete(t.tried, r.Nonce)
		t.mu.Unlock()
	}
	// A conflict is not forgotten: a client library, or a proxy, may have sent the request twice,
	// and the second has found the first. The next read of the record tells.
	return err
}

// mine reports whether the record is this ticket's: one that it wrote. The ID alone does not say
// so: another session may have chosen the same.
func (t *ticket) mine(r Record) bool {
	return r.ID == t.request.ID && !r.Foreign && strings.HasPrefix(r.Nonce, t.mark)
}

// ours notes the record that a write or a read has found to be ours.
func (t *ticket) ours(r Record, v Version) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a, known := t.tried[r.Nonce]; known && t.counts.Before(a.sent) {
		t.counts = a.sent // from before it was sent, not from when it was found
	}
	t.record, t.version, t.held = r, v, true
	t.settledLocked(v)
}

// settledLocked forgets the writes whose fate is known now that the record has the version v: what
// was to replace another one has been done, or never will be.
func (t *ticket) settledLocked(v Version) {
	for nonce, a := range t.tried {
		if a.old != v {
			delete(t.tried, nonce)
		}
	}
}

// notOurs notes that a read has found the record free, or another's, and reports whether a write of
// ours may still come. If not, there is nothing of this ticket in the store.
func (t *ticket) notOurs(v Version) (pending bool) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settledLocked(v)
	if pending = len(t.tried) > 0; !pending && !t.held {
		t.sent = false
		delete(s.tickets, t.request.ID)
	}
	return pending
}

// expired reports whether the holder's own time is over. Then the record is not renewed although it
// is unchanged: a contender may be about to take it, and the core has told the loss.
func (t *ticket) expired() bool {
	return keepalive.Left(t.session.opts.TTL, t.countsFrom(), t.session.backend.clock.now()) <= 0
}

// renew writes the record again.
func (t *ticket) renew(ctx context.Context) error {
	return t.rewrite(ctx, func(*Record) {})
}

// Publish writes the record with another value.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	return t.rewrite(ctx, func(r *Record) { r.Value = value })
}

// rewrite changes our record. A conflict is read back: another version of our own record
// (relabelled, or an earlier write of ours that was answered late) is written again, and only
// another holder, a free record or none is the end.
func (t *ticket) rewrite(ctx context.Context, change func(*Record)) error {
	done, err := t.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	for range tries {
		t.mu.Lock()
		certain := t.held && len(t.tried) == 0
		t.mu.Unlock()
		if !certain { // an earlier write may have been done: what does the store say?
			if err := t.readBack(ctx); err != nil {
				return err
			}
		}
		if t.expired() {
			return t.end(ctx, "its TTL was over before it was renewed")
		}
		t.mu.Lock()
		r, v := t.record, t.version
		t.mu.Unlock()
		change(&r)
		r.TTL = t.session.opts.TTL
		err := t.swap(ctx, r, r.Renewed, v)
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return errBusy(t.request.Name)
}

// readBack looks whether the record is ours.
func (t *ticket) readBack(ctx context.Context) error {
	r, v, _, err := t.session.backend.load(ctx, t.request.Name)
	switch {
	case err != nil:
		return err
	case t.mine(r):
		t.ours(r, v)
		return nil
	case t.wasHeld():
		return t.session.gone(t, "the record is free, or another's")
	case t.notOurs(v):
		return errUnanswered
	}
	return driver.ErrGone // it never was there: nothing to renew, and no loss
}

var errUnanswered = errors.New("its Enqueue has not been answered")

// end reports to the core that an expired record is lost, and then frees it, so that others need not
// observe it. In this order: no other may have the lock while its holder is not told. If the write
// fails they observe it.
func (t *ticket) end(ctx context.Context, why string) error {
	gone := t.session.gone(t, why)
	b := t.session.backend
	t.mu.Lock()
	r, v := t.record, t.version
	t.mu.Unlock()
	b.swap(ctx, b.stamp(r.freed(), time.Time{}), v)
	return gone
}

// Leave frees the record, or sees to it that a late write of ours cannot take it any more.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, b := t.session, t.session.backend
	s.mu.Lock()
	t.mu.Lock()
	t.left = true
	sent := t.sent
	r, v, known := t.record, t.version, t.held && len(t.tried) == 0 && len(t.freed) == 0
	t.mu.Unlock()
	delete(s.tickets, t.request.ID) // a record that is renewed no more goes by its TTL in any case
	if sent {
		s.leaving[t] = true
	}
	s.mu.Unlock()
	if !sent {
		return driver.ErrGone
	}
	err := errBusy(t.request.Name)
	for range tries {
		var over bool
		if !known {
			var seen observation
			if r, v, seen, err = b.load(ctx, t.request.Name); err != nil {
				return err
			}
			over = view{true, r, seen}.open()
		}
		known = false
		if err = t.free(ctx, r, v, over); !errors.Is(err, ErrConflict) {
			break
		}
	}
	if err == nil {
		b.gaveBack(t.request.Name)
	}
	if err == nil || errors.Is(err, driver.ErrGone) {
		s.mu.Lock()
		delete(s.leaving, t)
		s.mu.Unlock()
		t.mu.Lock()
		t.sent = false
		t.mu.Unlock()
	}
	return err
}

// free makes one attempt to give the record back.
func (t *ticket) free(ctx context.Context, r Record, v Version, open bool) error {
	mine := t.mine(r)
	t.mu.Lock()
	ended := t.freed[r.Nonce]
	late := false
	for _, a := range t.tried {
		late = late || a.old == v
	}
	t.mu.Unlock()
	switch {
	case ended: // by an earlier Leave, whose answer was lost
		return nil
	case !mine && (!late || !open):
		return driver.ErrGone
	}
	// Not ours, and as our unanswered write expects it: that write may still come. The record is
	// free, or that of a dead holder, which we may free as well as take. With another version the
	// late write is refused.
	free := t.session.backend.stamp(r.freed(), time.Time{})
	free.Name = t.request.Name
	t.mu.Lock()
	t.freed[free.Nonce] = mine
	t.mu.Unlock()
	_, err := t.session.backend.swap(ctx, free, v)
	if err == nil && !mine {
		return driver.ErrGone
	}
	return err
}
