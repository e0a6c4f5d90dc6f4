package caslock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Enqueue takes the lock if it is free, or if its holder's time is over. There is no queue: a
// waiter is not in the store.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if t.request.Units != driver.Whole || t.request.Capacity != driver.Whole {
		return driver.Verdict{}, fmt.Errorf("%w: %s has mutexes and elections only", driver.ErrUnsupported, t.session.backend)
	}
	done, err := t.take(ctx)
	if err != nil {
		return driver.Verdict{}, err
	}
	defer done()
	if t.session.done.Err() != nil {
		return driver.Verdict{}, errClosed
	}
	b := t.session.backend
	holder, observed := "", false
	for range tries {
		r, v, seen, err := b.load(ctx, t.request.Name)
		if err != nil {
			return driver.Verdict{}, err
		}
		if t.mine(r) {
			return t.found(ctx, r, v)
		}
		if t.wasHeld() || r.ID == t.request.ID { // the other's of this ID is not touched
			return driver.Verdict{}, driver.ErrGone
		}
		t.notOurs(v)
		now := view{true, r, seen}
		switch {
		case now.open():
			verdict, err := t.claim(ctx, r, v)
			if !errors.Is(err, ErrConflict) {
				return verdict, err
			}
		case t.request.NoWait && looksOver(r) && !observed:
			// A crashed holder would else make every try fail for ever; and a clock that is wrong,
			// a try succeed too early. Once: a record that has changed meanwhile is of a live
			// holder, also if its stamps are wrong.
			if err := b.observe(ctx, r); err != nil {
				return driver.Verdict{}, err
			}
			observed = true
		default:
			return t.refused(r), nil
		}
		holder = r.Owner // it may be that of the holder before: somebody was quicker
	}
	return t.refused(Record{Owner: holder}), nil
}

func (t *ticket) wasHeld() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held
}

// refused is the verdict of one that does not hold. Retry is for a watch that has gone silent: Wait
// tells an end that was observed by itself. It is bounded, since twice a TTL of centuries is no
// duration.
func (t *ticket) refused(r Record) driver.Verdict {
	return driver.Verdict{Holder: r.Owner, Retry: jittered(2*min(max(r.TTL, t.session.opts.TTL), 24*time.Hour) + t.session.backend.opts.Poll)}
}

// found is the verdict of one whose record is there: an earlier attempt was done, though its answer
// was lost.
func (t *ticket) found(ctx context.Context, r Record, v Version) (driver.Verdict, error) {
	t.ours(r, v)
	if t.expired() { // found too late to be trusted
		t.giveUp(ctx)
		return driver.Verdict{}, t.session.gone(t, "its TTL was over before its answer was found")
	}
	return driver.Verdict{Held: true, Token: r.Token}, nil
}

// claim takes a record that is free, over or not there.
func (t *ticket) claim(ctx context.Context, r Record, v Version) (driver.Verdict, error) {
	b := t.session.backend
	if _, numbers := b.store.(Sequencer); numbers && v == Absent {
		// The token is the version that the grant replaces, so there has to be one. If we die here,
		// a free record is left.
		free := Record{Name: t.request.Name}.stamped(time.Time{}, b.opts.Resolution)
		var err error
		if v, err = b.store.Swap(ctx, free, Absent); err != nil {
			return driver.Verdict{}, err // unknown or not, it takes nothing
		}
		r = free
	}
	token, err := b.token(r, v)
	if err != nil {
		return driver.Verdict{}, err
	}
	mine := Record{
		Name: t.request.Name, ID: t.request.ID, Owner: t.request.Owner, Since: t.request.Since, Value: t.request.Value,
		TTL: t.session.opts.TTL, Token: token, Note: r.Note,
	}
	if err := t.swap(ctx, mine, time.Time{}, v); err != nil {
		return driver.Verdict{}, err
	}
	return driver.Verdict{Held: true, Token: token}, nil
}

// Wait tries again when the lock is free, or its holder's time is over. All who wait are told at
// the same time, and spread: who sees in the meantime that the lock is taken does not ask.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	f, leave := t.session.backend.follow(t.request.Name)
	defer leave()
	spread := firstSpread
	for {
		v, news := f.look()
		if v.loaded && v.record.ID == t.request.ID { // an earlier attempt was done, though its answer was lost
			return t.Enqueue(ctx)
		}
		if v.open() {
			sleep(ctx, rand.N(spread))
			if now, _ := f.look(); now.open() && ctx.Err() == nil {
				verdict, err := t.Enqueue(ctx)
				if err != nil || verdict.Held {
					return verdict, err
				}
				spread = min(2*spread, lastSpread)
			}
		}
		if now, _ := f.look(); now.open() && ctx.Err() == nil && t.session.done.Err() == nil {
			continue
		}
		select {
		case <-news:
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		case <-t.session.done.Done():
			return driver.Verdict{}, errClosed
		}
	}
}

// The spread of those who race for a lock grows while they lose: with few contenders none waits for
// long, with many most find the lock taken without asking.
const (
	firstSpread = 10 * time.Millisecond
	lastSpread  = 500 * time.Millisecond
)

// Adopt takes over a record by its ID and token.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	done, err := t.take(ctx)
	if err != nil {
		return driver.Verdict{}, err
	}
	defer done()
	for range tries {
		r, v, seen, err := t.session.backend.load(ctx, t.request.Name)
		if err != nil {
			return driver.Verdict{}, err
		}
		if t.mine(r) {
			return t.found(ctx, r, v)
		}
		// By the wall clock as well: to refuse what may still live does no harm.
		if r.ID != id || r.Token != seq || r.Foreign || (view{true, r, seen}).over() || looksOver(r) || t.wasHeld() {
			return driver.Verdict{}, driver.ErrGone
		}
		mine := r
		mine.ID, mine.Owner, mine.Since, mine.TTL = t.request.ID, t.request.Owner, t.request.Since, t.session.opts.TTL
		if err := t.swap(ctx, mine, time.Time{}, v); !errors.Is(err, ErrConflict) {
			return driver.Verdict{Held: err == nil, Token: r.Token}, err
		}
	}
	return driver.Verdict{}, errBusy(t.request.Name)
}
