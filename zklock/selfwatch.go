package zklock

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"
)

// The self-watch is the watch on a ticket's own node, which reports that another client deletes it.
// It is kept from selfWatchHeld after the grant: most locks are held for less and are spared the
// request, the others are told of a deletion within a round trip, or when the watch is set. A
// waiter has less to lose, its place, and begins after selfWatchWaiting, unless it is next: to be
// granted by an event alone it must know that its own node still exists (selfWatchConfirmedLocked).
const (
	selfWatchHeld    = 20 * time.Millisecond
	selfWatchWaiting = 3 * time.Second
)

// startSelfWatchLocked has the self-watch begin after d, or earlier if that was asked before.
func (n *ephemeralNode) startSelfWatchLocked(d time.Duration) {
	switch {
	case n.left || n.selfWatched:
	case n.selfWatchTimer == nil:
		n.selfWatchTimer = time.AfterFunc(d, n.watchSelf)
	default:
		n.selfWatchTimer.Reset(d)
	}
}

// watchSelf sets the watch on our own node. It runs on the timer's goroutine for as long
// as that takes.
func (n *ephemeralNode) watchSelf() {
	node, err := n.ownPath()
	if err != nil {
		return
	}
	n.mu.Lock()
	begun := n.selfWatched
	n.selfWatched = true
	n.mu.Unlock()
	if begun {
		return
	}
	// A path that is not ours alone is looked at again after each reconnection: what the
	// server finds there when the library sets its watches again may be another's node.
	ours := n.flags&zk.FlagSequence != 0
	l := &listener{lasting: ours}
	l.wake = func(deleted bool) {
		if deleted {
			_ = n.nodeDeleted()
			return
		}
		n.mu.Lock() // the watch could not be set, or not be kept
		defer n.mu.Unlock()
		n.selfWatched = false
		n.startSelfWatchLocked(selfWatchHeld)
	}
	ctx := context.Background() // the session's end ends every call
	exists, err := n.session.watch(ctx, node, l)
	if err == nil && exists && !ours {
		// What is watched may be another's node already.
		var czxid int64
		czxid, err = n.look(ctx, node)
		exists = czxid != 0
	}
	if err == nil && !exists {
		_ = n.nodeDeleted()
	} // after an error l is woken, by watch or by the reconnection, and tries again
}

// selfWatchConfirmedLocked reports whether the server would have told by now that our own node is
// gone, before any event that it sends later.
func (t *ticket) selfWatchConfirmedLocked() bool {
	return t.node != "" && t.session.watches.confirmed(watchKey{t.node, children})
}
