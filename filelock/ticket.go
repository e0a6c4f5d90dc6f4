//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// ticket is the owner's grip on an entry.
type ticket struct {
	waiter
	session *session
	request driver.Request
	key     key
	file    *queueFile
	number  uint64 // what others ring it by
	held    atomic.Bool

	// Guarded by the file's critical section.
	slot uint32 // 0: not entered, or gone
	seq  uint64

	missing time.Time // since when a session file in the way has been missing; for Enqueue
}

const (
	// blindRetry is for waiting without hearing: a session file is missing, or there is
	// no descriptor to watch it with.
	blindRetry = 50 * time.Millisecond
	// upkeepEvery is how stale the answer of upkeep may be when an entry is made.
	upkeepEvery = time.Second
)

// Tests change these.
var (
	// safetyNet is below all wake-ups. No way to lose one is known. Waking costs a process
	// that has long been idle 300 us, and there may be many.
	safetyNet = 30 * time.Second
	// missingPatience is how long a session file may be missing before those who wait for
	// its owner are told. A living owner mends it when it looks next.
	missingPatience = 70 * time.Second
)

// slowRetry is jittered so that waiters who came together do not look together.
func slowRetry() time.Duration { return safetyNet + rand.N(safetyNet) }

// Enqueue enters, or looks again. It goes round for each of the dead it finds in its way.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := checkRequest(&t.request); err != nil {
		return driver.Verdict{}, err
	}
	if err := t.session.upkeep(ctx, upkeepEvery); err != nil {
		return driver.Verdict{}, err
	}
	for gone := (dead)(nil); ; {
		v, deniers, err := t.attempt(ctx, gone)
		found, v, err := t.look(v, deniers, err)
		if len(found) == 0 {
			return v, refuse(err)
		}
		if gone == nil {
			gone = dead{}
		}
		for id := range found {
			gone[id] = true
		}
	}
}

// look finds out who of the deniers is dead, and watches the others if it is to wait.
//
// A denier that leaves between the attempt and this has seen our entry and rings; one
// that dies in between is found dead now, or reported by the watch.
func (t *ticket) look(v driver.Verdict, deniers []sessionID, err error) (dead, driver.Verdict, error) {
	post := t.session.store.post
	switch {
	case errors.Is(err, driver.ErrMismatch):
		// It counts only if somebody who lives is of the other kind.
		gone, _ := t.session.store.living(deniers)
		return gone, v, err
	case err != nil:
		return nil, v, err
	case v.Held:
		post.unwatch(&t.waiter)
		t.session.holds()
		return nil, v, nil
	case t.request.NoWait:
		gone, err := t.session.store.living(deniers)
		return gone, v, err
	}
	gone, retry, err := post.watch(&t.waiter, deniers)
	if v.Retry = retry; retry == 0 {
		v.Retry = slowRetry()
	}
	if !errors.As(err, new(*missingError)) {
		t.missing = time.Time{}
		return gone, v, nil
	}
	if t.missing.IsZero() {
		t.missing = time.Now()
	}
	if time.Since(t.missing) < missingPatience {
		err = nil
	}
	return gone, v, err
}

// attempt makes one pass through the critical section: enter if that is still to be done,
// and judge. It returns the sessions of the blockers to watch if the entry does not hold.
func (t *ticket) attempt(ctx context.Context, gone dead) (v driver.Verdict, deniers []sessionID, err error) {
	q, r := t.file, &t.request
	if err := q.lock(ctx); err != nil {
		return v, nil, err
	}
	defer q.unlock()
	if t.left.Load() {
		return v, nil, fmt.Errorf("%w: it has left", driver.ErrGone)
	}
	prev := uint32(0)
	if t.slot != 0 {
		rec, here, err := t.present()
		if err != nil {
			return v, nil, err
		}
		if !here {
			return v, nil, fmt.Errorf("%w: evicted", driver.ErrGone)
		}
		prev = rec.prev
	} else {
		held, deniers, tail, err := t.admit(gone)
		if err != nil {
			return v, deniers, err
		}
		if r.NoWait && !held {
			v.Holder = q.holder(tail)
			return v, deniers, nil
		}
		if err := t.enter(tail); err != nil {
			return v, nil, err
		}
		prev = tail
	}
	v.Held, deniers, err = q.judge(t.slot, prev, r.Units, r.Capacity, gone)
	if v.Held {
		v.Token = t.seq
		t.held.Store(true) // still inside: who evicts us comes later, and rings a holder
	}
	return v, deniers, err
}

// admit checks whether an entry may enter at all, and for NoWait whether it would hold.
// tail is the newest entry, behind which it goes.
func (t *ticket) admit(gone dead) (held bool, deniers []sessionID, tail uint32, err error) {
	q, r := t.file, &t.request
	if err := q.intact(); err != nil {
		return false, nil, 0, err
	}
	tail, rec, err := q.find(t.key)
	if tail != 0 && gone != nil && err == nil {
		// The dead may be all that is left, or all that is of another capacity.
		if err = q.bury(tail, gone); err == nil {
			tail, rec, err = q.find(t.key)
		}
	}
	if err != nil || tail == 0 {
		return true, nil, tail, err
	}
	if err := checkKind(r.Name, &rec, r); err != nil {
		deniers, unread := q.sessions(tail)
		if unread != nil {
			err = unread
		}
		return false, deniers, tail, err
	}
	if r.NoWait {
		held, deniers, err = q.judge(0, tail, r.Units, r.Capacity, gone)
	}
	return held, deniers, tail, err
}

// enter makes the entry. It is known to ringers and to Close before others can see it.
func (t *ticket) enter(tail uint32) error {
	s := t.session
	if !s.enlist(t) {
		return fmt.Errorf("%w: the session was closed", driver.ErrGone)
	}
	slot, rec, err := t.file.enter(t.key, tail, &t.request, s.id, t.number)
	if err != nil {
		s.forget(t)
		return err
	}
	t.slot, t.seq = slot, rec.seq
	return nil
}

// present reads the entry's record, if it still stands in the queue: once it has left,
// its slot may be another's, or not even in use.
func (t *ticket) present() (rec record, here bool, err error) {
	if t.slot == 0 || t.slot > t.file.head.high() {
		return rec, false, nil
	}
	rec, err = t.file.record(t.slot)
	return rec, err == nil && rec.state == standing && rec.seq == t.seq && rec.session == t.session.id, err
}

// Wait sleeps until somebody rings, and looks.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	select {
	case <-t.bell.Rings():
		return t.Enqueue(ctx)
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	case <-t.session.done.Done():
		return driver.Verdict{}, t.session.ended()
	}
}

// Leave removes the entry and rings those whom that concerns, after the lock is free for
// them. Should we die in between, they are told of our death instead: they watch us.
func (t *ticket) Leave(ctx context.Context) error {
	t.left.Store(true) // an Enqueue under way has entered already, or finds this
	who, err := t.depart(ctx)
	if err != nil && !errors.Is(err, driver.ErrGone) {
		return err
	}
	t.session.forget(t)
	t.session.store.post.unwatch(&t.waiter)
	for _, p := range who {
		t.session.store.post.ring(p)
	}
	if len(who) > 0 {
		giveWay()
	}
	return err
}

func (t *ticket) depart(ctx context.Context) (who []party, err error) {
	q := t.file
	if err := q.lock(ctx); err != nil {
		return nil, asGone(err)
	}
	defer q.unlock()
	rec, here, err := t.present()
	if err != nil {
		return nil, asGone(err)
	}
	if !here {
		return nil, driver.ErrGone
	}
	if who, err = q.expel(t.slot, rec, t.key, nil); err != nil {
		return nil, asGone(err)
	}
	t.slot = 0
	return who, nil
}

// asGone makes damage final where an entry is to be removed: nothing in a broken file
// counts as an entry, and asking again would not end.
func asGone(err error) error {
	if isDamage(err) {
		return fmt.Errorf("%w: %w", driver.ErrGone, err)
	}
	return err
}

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("%w: a value may have %d bytes", driver.ErrInvalid, maxValue)
	}
	if err := t.file.lock(ctx); err != nil {
		return refuse(err)
	}
	defer t.file.unlock()
	rec, here, err := t.present()
	if err != nil {
		return refuse(err)
	}
	if !here {
		return driver.ErrGone
	}
	return refuse(t.file.setValue(t.slot, &rec, value))
}
