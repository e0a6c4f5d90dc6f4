package zklock

import (
	"context"
	"errors"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// Wait watches the blockers. When one is gone it is taken off the list ahead, which is a
// superset of who is there and so never admits too early: the first waiter behind a holder
// is granted by the event itself, without asking. If that is not enough (others were ahead
// when the list was made, and no event says whether they still are) it is read again.
//
// If no Enqueue was answered there is no list to wait by. The node may be there (the create was
// answered, or its goroutine has settled it since, and the list was not), or still be on its way.
// An empty list ahead would grant the lock beside its holder, and "gone" would have a node
// forgotten that is about to be made. So it asks, as Enqueue does: that finds or awaits the node,
// and returns early with the answer.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	t.mu.Lock()
	unanswered := !t.decided && (t.creating != nil || t.node != "")
	t.mu.Unlock()
	if unanswered {
		return t.Enqueue(ctx)
	}
	for {
		if _, err := t.ownPath(); err != nil {
			return driver.Verdict{}, err
		}
		t.mu.Lock()
		held, blockers := driver.Decide(t.ahead, t.request)
		if !held && t.onlyBlockerLocked(blockers[0]) {
			t.startSelfWatchLocked(0)
		}
		t.mu.Unlock()
		if held {
			return t.held(ctx)
		}
		if err := t.await(ctx, blockers); err != nil {
			return driver.Verdict{}, err
		}
		if t.dropDeleted() {
			return t.held(ctx)
		}
		names, err := t.list(ctx)
		if err != nil {
			return driver.Verdict{}, err
		}
		if v, err := t.decide(ctx, names); err != nil || v.Held {
			return v, err
		}
	}
}

// await returns when something has happened to a blocker, or may have.
func (t *ticket) await(ctx context.Context, blockers []driver.Entry) error {
	watches := &t.session.conn.watches
	listeners := make([]*listener, len(blockers))
	for i, b := range blockers {
		l := &listener{wake: func(deleted bool) { t.blockerChanged(b.ID, deleted) }}
		listeners[i] = l
		defer watches.remove(t.parent+"/"+b.ID, l)
		defer watches.remove(t.parent, l)
	}
	// Together: a permit may have many in front.
	if err := each(ctx, len(blockers), func(i int) error { return t.watch(ctx, blockers[i].ID, listeners[i]) }); err != nil {
		return err
	}
	return t.waitSignal(ctx)
}

// watch watches a blocker, or all of the queue if we may not read the blocker.
func (t *ticket) watch(ctx context.Context, name string, l *listener) error {
	t.mu.Lock()
	hidden := slices.Contains(t.unreadable, name)
	t.mu.Unlock()
	if hidden {
		names, err := t.session.watchAll(ctx, t.parent, l)
		if err == nil && !slices.Contains(names, name) {
			t.blockerChanged(name, true)
		}
		return err
	}
	exists, err := t.session.watch(ctx, t.parent+"/"+name, l)
	if errors.Is(err, zk.ErrNoAuth) { // l has been woken; the next look knows
		t.mu.Lock()
		t.unreadable = append(t.unreadable, name)
		t.mu.Unlock()
		return nil
	}
	if err == nil && !exists {
		t.blockerChanged(name, true)
	}
	return err
}

// blockerChanged wakes the waiter about a blocker.
func (t *ticket) blockerChanged(name string, deleted bool) {
	if deleted {
		t.mu.Lock()
		t.deletedBlockers = append(t.deletedBlockers, name)
		t.mu.Unlock()
	}
	t.signal.Notify()
}

// onlyBlockerLocked reports whether we hold when this blocker has left.
func (t *ticket) onlyBlockerLocked(b driver.Entry) bool {
	held, _ := driver.Decide(without(t.ahead, []string{b.ID}), t.request)
	return held
}

func without(ahead []driver.Entry, gone []string) []driver.Entry {
	return slices.DeleteFunc(slices.Clone(ahead), func(e driver.Entry) bool { return slices.Contains(gone, e.ID) })
}

// dropDeleted takes those that are known to have gone off the list, and reports whether
// that is enough to hold. It is not if our own node is not watched: it may have been
// deleted before the blocker's (an operator evicts a waiter), and no event would have told.
// With the watch its event would have come first, since events come in the order of what
// they tell.
//
// One case is left, and only an administrator makes it: both nodes deleted in a single
// transaction, the blocker's first. Its events come in that order and no gap can be seen
// between them, so that the waiter is granted what it loses with the next packet, like a
// holder that is evicted. To ask before every grant whether there is a next packet would
// cost every hand-over a round trip.
func (t *ticket) dropDeleted() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	departed := t.deletedBlockers
	t.deletedBlockers = nil
	if t.gone != nil || len(departed) == 0 || !t.selfWatchConfirmedLocked() {
		return false // and the list stays as it is, for another Wait to find the same
	}
	rest := without(t.ahead, departed)
	held, _ := driver.Decide(rest, t.request)
	if held {
		t.ahead = rest
	}
	// Else the list that is read now takes its place; and if ctx ends before its answer, another
	// Wait must not go on with the rest: of those ahead that has only who decides (Dialect.ahead),
	// and with one more taken off it would be empty.
	return held
}
