package pglock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// heldConn is a connection that holds a lock. In between requests a goroutine reads from it,
// so that its end (the server is killed, restarted, or told to close it) is noticed at once and not
// at the next renewal.
type heldConn struct {
	link *pgxLink
	done context.Context // ends reading, and the connection with it
	lost func(error)     // called once, unless release comes first

	// turn has one slot: the caller that fills it may use the connection and the fields below.
	// pgx wants one user at a time.
	turn    chan struct{}
	stop    func()        // of the reader, started or not
	stopped chan struct{} // closed when it has returned, or never will start
	over    bool          // the connection is not ours any more: it may hold another's lock by now
}

// errOver is for a renewal, or a second release, whose turn comes after the lock was given back.
var errOver = fmt.Errorf("%w: it has been given back", driver.ErrGone)

// readAfter is how long a lock is held before the reader starts: most are released sooner,
// and starting and interrupting a reader costs a quarter of a lock and unlock. A loss is
// to be told within 50 ms.
const readAfter = 20 * time.Millisecond

func newHeldConn(done context.Context, c *pgxLink, lost func(error)) *heldConn {
	h := &heldConn{link: c, done: done, lost: lost, turn: make(chan struct{}, 1)}
	h.read()
	return h
}

// read starts the reader; the caller has the turn, or is the only one that knows h.
func (h *heldConn) read() {
	ctx, cancel := context.WithCancel(h.done)
	stopped := make(chan struct{})
	timer := time.AfterFunc(readAfter, func() {
		defer close(stopped)
		for ctx.Err() == nil {
			err := h.link.wait(ctx, func(string) {}) // nothing is listened to: others are ignored
			if err != nil && ctx.Err() == nil {
				h.lost(err)
				return
			}
		}
		if h.done.Err() != nil {
			h.link.close()
		}
	})
	h.stopped, h.stop = stopped, func() {
		cancel()
		if timer.Stop() {
			close(stopped)
		}
	}
}

// use interrupts the reader for a request. What do leaves broken is lost; what it ends
// (last) is not used or read from again.
func (h *heldConn) use(ctx context.Context, last bool, do func(context.Context, *pgxLink) error) error {
	select {
	case h.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.turn }()
	if h.over {
		return errOver
	}
	h.over = last
	h.stop()
	<-h.stopped
	err := do(ctx, h.link)
	switch {
	case last:
	case h.link.broken():
		h.lost(err)
	default:
		h.read()
	}
	return err
}

// mark changes what the connection remembers, unless the lock has been given back.
func (h *heldConn) mark(change func(*pgxLink)) bool {
	select {
	case h.turn <- struct{}{}:
	case <-h.done.Done():
		return false
	}
	defer func() { <-h.turn }()
	if h.over {
		return false
	}
	change(h.link)
	return true
}
