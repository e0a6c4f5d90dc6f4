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
	link  *pgxLink
	done  context.Context // ends reading, and the connection with it
	lost  func(error)     // called once, unless release comes first
	timer *time.Timer     // of due

	// turn has one slot: the caller that fills it may use the connection and the fields below.
	// pgx wants one user at a time.
	turn   chan struct{}
	record func()  // records the holder; nil where that is not done, or was
	reader *reader // nil: none reads
	isOver bool    // the connection is not ours any more: it may hold another's lock by now

	renewed time.Time // the session's lock guards it: when a KeepAlive began whose request the server has answered
}

// reader is a goroutine that reads from a connection.
type reader struct {
	stop    context.CancelFunc
	stopped chan struct{} // closed when it has returned
}

// errOver is for a renewal, or a second release, whose turn comes after the lock was given back.
var errOver = fmt.Errorf("%w: it has been given back", driver.ErrGone)

// longHeld is for how long a lock is held before the reader starts, and before an advisory lock's
// holder is recorded at the server: most are released sooner, and starting and interrupting a
// reader costs a quarter of a lock and unlock. A loss is to be told within 50 ms.
const longHeld = 20 * time.Millisecond

// hold begins to watch over a connection that holds. record may be nil.
func (s *boundSession) hold(c *pgxLink, lost func(error), record func()) *heldConn {
	s.mu.Lock()
	renewed := s.renewed
	s.mu.Unlock()
	h := &heldConn{link: c, done: s.done, lost: lost, turn: make(chan struct{}, 1), record: record, renewed: renewed}
	h.timer = time.AfterFunc(longHeld, h.due)
	return h
}

// due is called when it has been held for longHeld, or as long after a request. A request that is
// under way keeps it away: that is the last one, or sets the timer again when it has ended.
func (h *heldConn) due() {
	select {
	case h.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-h.turn }()
	if h.isOver || h.reader != nil {
		return
	}
	if h.record != nil {
		h.record()
		h.record = nil
	}
	h.read()
}

// read starts the reader; the caller has the turn.
func (h *heldConn) read() {
	ctx, cancel := context.WithCancel(h.done)
	r := &reader{stop: cancel, stopped: make(chan struct{})}
	h.reader = r
	go func() {
		defer close(r.stopped)
		defer cancel()
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
	}()
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
	if h.isOver {
		return errOver
	}
	h.isOver = last
	h.timer.Stop()
	if h.reader != nil {
		h.reader.stop()
		<-h.reader.stopped
		h.reader = nil
	}
	err := do(ctx, h.link)
	switch {
	case last:
	case h.link.broken():
		h.lost(err)
	default:
		h.timer.Reset(longHeld)
	}
	return err
}
