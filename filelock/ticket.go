//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/signal"
)

// ticket is an entry of ours, before, while and after it is in the queue.
type ticket struct {
	waiter
	session *session
	request driver.Request
	key     key
	file    *queueFile
	number  uint64 // with which others signal it
	held    atomic.Bool

	seq uint64 // 0: not entered; guarded by the file's critical section

	// Guarded by session.mu: what it was told since it looked last.
	mustLook bool
	grant    uint64 // the seq of the entry that was said to hold; 0: none

	missing time.Time // since when a session file in the way has been missing; for Enqueue
}

const (
	// blindRetry is for waiting without being woken: a session file is missing, or there is
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
	// missingTimeout is how long a session file may be missing before those that wait for
	// its owner are told. A living owner makes it anew when it looks next.
	missingTimeout = 70 * time.Second
)

// slowRetry is jittered so that waiters that came together do not look together.
func slowRetry() time.Duration { return safetyNet + rand.N(safetyNet) }

// Wait sleeps until it is signalled, and looks, unless it is told that it holds.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	select {
	case <-t.signal.C():
		if v, ok := t.granted(); ok {
			return v, nil
		}
		v, err := t.Enqueue(ctx)
		if err != nil {
			t.session.lookAgain(t) // it may not have looked
		}
		return v, err
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	case <-t.session.done.Done():
		return driver.Verdict{}, t.session.ended()
	}
}

// granted makes the verdict of an entry whose grant came with the signal, without a look at the
// file. The one that left has computed it in its critical section from the same records that
// we would read, and sends it after its write, so that it is true by now. Nothing takes it back but
// the removal of our own entry (see wakeTarget.holds). Of that we are signalled in any case:
//
//   - by an eviction before our mark: then we must look, whichever signal came first;
//   - by one after it: we are a holder by then, and it is looked at (session.wake).
//
// Should the sender die before it has sent, we are told of its death and look; a full pipe wakes
// all tickets, which look. The mark is set here and not when the signal comes: only here is it
// known, without the critical section, which entry is ours. The number of a ticket and a seq
// are used once, so that a signal for another entry, or bytes that somebody writes by
// hand, are no grant.
func (t *ticket) granted() (v driver.Verdict, ok bool) {
	s := t.session
	s.mu.Lock()
	ok = t.grant != 0 && t.grant == t.seq && !t.mustLook && !s.closed
	t.grant, t.mustLook = 0, false
	if ok {
		t.held.Store(true)
	}
	s.mu.Unlock()
	if !ok || s.store.failure() != nil { // Enqueue says how the store has failed
		return v, false
	}
	s.store.notifier.unwatch(&t.waiter)
	s.holds()
	return driver.Verdict{Held: true, Token: t.seq}, true
}

// Leave removes the entry and signals those that it concerns, after the lock is free for
// them. Should we die in between, they are told of our death instead: they watch us.
func (t *ticket) Leave(ctx context.Context) error {
	t.left.Store(true) // an Enqueue under way has entered already, or finds this
	who, err := t.removeEntry(ctx)
	if err != nil && !errors.Is(err, driver.ErrGone) {
		return err
	}
	for _, p := range who {
		t.session.store.notifier.tell(p)
	}
	t.session.forget(t)
	t.session.store.notifier.unwatch(&t.waiter)
	if len(who) > 0 {
		yieldCPU()
	}
	return err
}

func (t *ticket) removeEntry(ctx context.Context) (who []wakeTarget, err error) {
	q := t.file
	if err := q.lock(ctx); err != nil {
		return nil, asGone(err)
	}
	defer q.unlock()
	queue := q.queue(t.key)
	i := indexOf(queue, t.seq, t.session.id)
	if i < 0 {
		return nil, driver.ErrGone
	}
	who = affectedBy(queue, i)
	return who, asGone(q.remove(*queue[i]))
}

// waiter is woken by the notifier.
type waiter struct {
	signal signal.Signal
	left   atomic.Bool // does not wait any more, and will not again
	peers  peerWatches // guarded by notifier.mu
}
