//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Enqueue enters, or looks again. It repeats for each dead session that it finds ahead of it.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if err := checkRequest(&t.request); err != nil {
		return driver.Verdict{}, err
	}
	if err := t.session.upkeep(ctx, upkeepEvery); err != nil {
		return driver.Verdict{}, err
	}
	for gone := (deadSessions)(nil); ; {
		v, deniers, err := t.attempt(ctx, gone)
		found, v, err := t.checkDeniers(v, deniers, err)
		if len(found) == 0 {
			return v, t.asCoreError(err)
		}
		if gone == nil {
			gone = deadSessions{}
		}
		for id := range found {
			gone[id] = true
		}
	}
}

// asCoreError returns an error of Enqueue as the core is to understand it. A pass that fails when
// an earlier one has entered (the disk is full, or cannot be read) leaves the entry in the queue:
// for the core that is unknown, so that it asks again, or takes the entry back. Two errors are
// refusals in any case: nothing in a damaged file is an entry; and a waiter that has been kept by a
// missing session file for long is told, though its entry stays, for the core is patient with one
// that waits.
func (t *ticket) asCoreError(err error) error {
	if t.seq != 0 && !isDamage(err) && !errors.As(err, new(*missingError)) {
		return err
	}
	return refuse(err)
}

// checkDeniers finds out which of the deniers are dead, and watches the others if it is to wait.
//
// A denier that leaves between the attempt and this has seen our entry and signals us; one
// that dies in between is found dead now, or reported by the watch.
func (t *ticket) checkDeniers(v driver.Verdict, deniers []sessionID, err error) (deadSessions, driver.Verdict, error) {
	notifier := t.session.store.notifier
	switch {
	case errors.Is(err, driver.ErrMismatch):
		// It counts only if a living session is of the other kind.
		gone, _ := t.session.store.endedSessions(deniers)
		return gone, v, err
	case err != nil:
		return nil, v, err
	case v.Held:
		notifier.unwatch(&t.waiter)
		t.session.holds()
		return nil, v, nil
	case t.request.NoWait:
		gone, err := t.session.store.endedSessions(deniers)
		return gone, v, err
	}
	gone, retry, err := notifier.watch(&t.waiter, deniers)
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
	if time.Since(t.missing) < missingTimeout {
		err = nil
	}
	return gone, v, err
}

// attempt makes one pass through the critical section: enter if that is still to be done,
// and decide. It returns the sessions of the blockers to watch if the entry does not hold.
func (t *ticket) attempt(ctx context.Context, gone deadSessions) (v driver.Verdict, deniers []sessionID, err error) {
	q, r := t.file, &t.request
	if err := q.lock(ctx); err != nil {
		return v, nil, err
	}
	defer q.unlock()
	if t.left.Load() {
		return v, nil, fmt.Errorf("%w: it has left", driver.ErrGone)
	}
	queue, err := q.living(t.key, gone)
	if err != nil {
		return v, nil, err
	}
	ahead := queue
	if t.seq != 0 {
		i := indexOf(queue, t.seq, t.session.id)
		if i < 0 {
			return v, nil, fmt.Errorf("%w: evicted", driver.ErrGone)
		}
		ahead = queue[:i]
	} else if err := q.intact(); err != nil {
		return v, nil, err
	} else if err := checkKind(queue, r); err != nil {
		return v, sessionsOf(queue), err
	}
	v.Held, deniers = decide(ahead, r.Units, r.Capacity)
	if r.NoWait && !v.Held && t.seq == 0 {
		d, _, _ := q.details(ahead[0])
		v.Holder = d.Owner // for a message, if it is readable
		return v, deniers, nil
	}
	if t.seq == 0 {
		if err := t.enter(); err != nil {
			return driver.Verdict{}, nil, err
		}
	}
	if v.Held {
		v.Token = t.seq
		t.held.Store(true) // still inside: an eviction comes later, and signals a holder
	} else {
		v.Place = place(ahead, r.Capacity)
	}
	return v, deniers, nil
}

// enter makes the entry. The ticket is known to wake and to Close before others can see the entry.
func (t *ticket) enter() error {
	s := t.session
	if !s.register(t) {
		return fmt.Errorf("%w: the session was closed", driver.ErrGone)
	}
	rec, err := t.file.enter(t.key, &t.request, s.id, t.number)
	if err != nil {
		s.forget(t)
		return err
	}
	t.seq = rec.seq
	return nil
}
