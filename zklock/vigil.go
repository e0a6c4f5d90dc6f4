package zklock

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"
)

// The vigil is the watch on one's own node, for the news that somebody deletes it. It is
// kept from vigilHeld after the grant: most locks are held for less and are spared the
// request, the others hear of a deletion within a round trip, or when the watch is set. A
// waiter has less to lose, its place, and begins after vigilWaiting, unless it is next: to
// be granted by an event alone it must know that its own node still stands (guarded).
const (
	vigilHeld    = 20 * time.Millisecond
	vigilWaiting = 3 * time.Second
)

// startVigilLocked has the vigil begin after d, or earlier if that was said before.
func (g *grip) startVigilLocked(d time.Duration) {
	switch {
	case g.left || g.vigilant:
	case g.vigil == nil:
		g.vigil = time.AfterFunc(d, g.watchSelf)
	default:
		g.vigil.Reset(d)
	}
}

// watchSelf sets the watch on our own node. It runs on the timer's goroutine for as long
// as that takes.
func (g *grip) watchSelf() {
	node, err := g.standing()
	if err != nil {
		return
	}
	g.mu.Lock()
	begun := g.vigilant
	g.vigilant = true
	g.mu.Unlock()
	if begun {
		return
	}
	// A path that is not ours alone is looked at again after each reconnection: what the
	// server finds there when the library sets its watches again may be another's node.
	ours := g.flags&zk.FlagSequence != 0
	l := &listener{lasting: ours}
	l.wake = func(deleted bool) {
		if deleted {
			_ = g.vanished()
			return
		}
		g.mu.Lock() // the watch could not be set, or not be kept
		defer g.mu.Unlock()
		g.vigilant = false
		g.startVigilLocked(vigilHeld)
	}
	ctx := context.Background() // the session's end ends every call
	exists, err := g.session.watch(ctx, node, l)
	if err == nil && exists && !ours {
		// What is watched may be another's node already.
		var czxid int64
		czxid, err = g.look(ctx, node)
		exists = czxid != 0
	}
	if err == nil && !exists {
		_ = g.vanished()
	} // after an error l is woken, by watch or by the reconnection, and tries again
}

// guardedLocked reports whether the server would have told by now that our own node is
// gone, before whatever it tells later.
func (t *ticket) guardedLocked() bool {
	return t.node != "" && t.session.watches.standing(watchKey{t.node, children})
}
