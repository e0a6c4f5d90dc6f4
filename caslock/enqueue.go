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
	v, err := t.enqueue(ctx)
	if err == nil && v.Held {
		v.Token, err = t.freshToken(ctx, v.Token)
	}
	if err != nil {
		return driver.Verdict{}, err
	}
	return v, nil
}

// longAgo is how many versions there are between a token and its grant's write if the record that
// it replaced was old.
const longAgo = 1_000_000

// freshToken returns the token of a grant: that in the record, or, if that is of long ago, another
// one, for one more write. A record that came back with a backup has a version of the time of that
// backup, and greater tokens were granted since. The version that our write has made is above those,
// if the store's versions go on far enough above them, as etcd's do with --bump-revision. The caller
// is told no token before the new one stands in the record: if we die here, or the answer is lost,
// the next grant replaces a recent version.
//
// A name that was not used for a million of the store's versions looks the same, and costs the same.
// Rejected: to read the store's current version before each grant; in Kubernetes that is a list,
// which waits for the server's cache.
func (t *ticket) freshToken(ctx context.Context, token uint64) (uint64, error) {
	t.mu.Lock()
	reported, v := t.reported, t.version
	t.mu.Unlock()
	if q, numbers := t.session.backend.store.(Sequencer); numbers && !reported {
		now, err := q.Number(v)
		if err != nil {
			return 0, err
		}
		if now > token && now-token > longAgo {
			if err := t.rewrite(ctx, func(r *Record) { r.Token = now }); err != nil {
				return 0, err
			}
			token = now
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reported = true
	return token, nil
}

// enqueue is Enqueue, but for tokens of long ago.
func (t *ticket) enqueue(ctx context.Context) (driver.Verdict, error) {
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
		if t.wasHeld() || r.ID == t.request.ID { // another session's entry of this ID stays as it is
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
		case t.request.NoWait && b.looksOver(r) && !observed && r.TTL <= t.session.opts.TTL:
			// The stamp alone decides nothing: without a look at the record every try would fail
			// for ever after a crash, and by the stamp a wrong clock would let one succeed too
			// early. One observation is enough: a record that has changed meanwhile has a live
			// holder, even if its stamps are wrong. It takes this client's TTL at most. A try that
			// waits for longer is none; its caller is told since when the record looks over.
			if err := b.observe(ctx, r); err != nil {
				return driver.Verdict{}, err
			}
			observed = true
		default:
			verdict := t.refused(r)
			if t.request.NoWait && !observed {
				verdict.LooksOver = b.looksOverSince(r, seen)
			}
			return verdict, nil
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

// refused is the verdict for an entry that does not hold. Wait itself notices when the record is
// over: Retry is for a watch that has gone silent. It is bounded, since twice a TTL of centuries
// is more than a Duration can have.
func (t *ticket) refused(r Record) driver.Verdict {
	return driver.Verdict{Holder: r.Owner, Retry: jittered(2*min(max(r.TTL, t.session.opts.TTL), 24*time.Hour) + t.session.backend.opts.Poll)}
}

// found is the verdict of one whose record is there: an earlier attempt was done, though its answer
// was lost.
func (t *ticket) found(ctx context.Context, r Record, v Version) (driver.Verdict, error) {
	t.ours(r, v)
	if t.expired() { // found too late to be trusted
		return driver.Verdict{}, t.end(ctx, "its TTL was over before its answer was found")
	}
	return driver.Verdict{Held: true, Token: r.Token}, nil
}

// claim takes a record that is free, over or not there.
func (t *ticket) claim(ctx context.Context, r Record, v Version) (driver.Verdict, error) {
	b := t.session.backend
	b.giveWay(ctx, r.Name)
	if _, numbers := b.store.(Sequencer); numbers && v == Absent {
		// The token is the version that the grant replaces, so there has to be one. If we die here,
		// a free record is left.
		free := b.stamp(Record{Name: t.request.Name}, time.Time{})
		var err error
		if v, err = b.swap(ctx, free, Absent); err != nil {
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
	t.mu.Lock()
	t.reported = true // by its last holder
	t.mu.Unlock()
	for range tries {
		r, v, seen, err := t.session.backend.load(ctx, t.request.Name)
		if err != nil {
			return driver.Verdict{}, err
		}
		if t.mine(r) {
			return t.found(ctx, r, v)
		}
		// Its stamp is not looked at: it is another machine's, and one whose clock differs by a TTL
		// would lose every lock at a move. That the record is unchanged when it is replaced says that
		// no other client has had the lock since its holder.
		if r.ID != id || r.Token != seq || r.Foreign || (view{true, r, seen}).over() || t.wasHeld() {
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
