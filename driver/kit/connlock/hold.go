package connlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// hold is a connection that holds a lock. In between requests a goroutine watches it, so that its
// end (the server is killed, restarted, or told to close it) is noticed at once and not at the next
// renewal.
type hold[C any] struct {
	ticket  *Ticket[C]
	attempt *attempt[C] // that was granted
	timer   *time.Timer // of due

	// turn has one slot: the caller that fills it may use the connection and the fields below. A
	// mutex could not be waited for within a context.
	turn     chan struct{}
	conn     C
	recorded bool // or about to be
	watch    *watch
	over     bool // the connection is not ours any more: it may hold another's lock by now

	renewed bootclock.Instant // the session's lock guards it: when a KeepAlive began whose request the server has answered
}

// watch is a goroutine that watches a connection.
type watch struct {
	stop    context.CancelFunc
	stopped chan struct{} // closed when it has returned
}

// errOver is for a renewal, or a second release, whose turn comes after the lock was given back.
var errOver = fmt.Errorf("%w: it has been given back", driver.ErrGone)

// newHold begins to care for a connection that holds.
func newHold[C any](t *Ticket[C], a *attempt[C], c C) *hold[C] {
	s := t.session
	s.mu.Lock()
	renewed := s.renewed
	s.mu.Unlock()
	h := &hold[C]{ticket: t, attempt: a, conn: c, turn: make(chan struct{}, 1), renewed: renewed}
	h.timer = time.AfterFunc(Brief, h.due)
	return h
}

// due is called when it has been held for Brief, or as long after a request. A request that is under
// way keeps it away: that is the last one, or sets the timer again when it has ended.
func (h *hold[C]) due() {
	select {
	case h.turn <- struct{}{}:
	default:
		return
	}
	defer func() { <-h.turn }()
	if h.over || h.watch != nil {
		return
	}
	if !h.recorded {
		h.recorded = true
		if record := h.ticket.session.store.Recorder(h.conn, h.ticket.request, h.attempt.Grant); record != nil {
			go h.record(record)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel, make(chan struct{})}
	h.watch = w
	go func() {
		defer close(w.stopped)
		if err := h.ticket.session.store.Watch(ctx, h.conn); ctx.Err() == nil {
			h.lost(err)
		}
	}()
}

// record records the holder, and while it holds tries again what has failed, or the holder would be
// shown without a name for as long as it holds. What was refused is not tried again.
func (h *hold[C]) record(record func(context.Context) error) {
	t, s := h.ticket, h.ticket.session
	for over := false; !over; {
		ctx, cancel := context.WithTimeout(s.Done, s.Granted)
		err := record(ctx)
		cancel()
		if err == nil || errors.Is(err, driver.ErrRefused) {
			return
		}
		select {
		case <-s.Done.Done():
			return
		case <-time.After(s.Granted / 2):
		}
		s.mu.Lock()
		over = t.left || t.gone
		s.mu.Unlock()
	}
}

// use stops the watch for a request. What it ends (last) is not used or watched again.
func (h *hold[C]) use(ctx context.Context, last bool, do func(context.Context, C) error) error {
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
	h.timer.Stop()
	if h.watch != nil {
		h.watch.stop()
		<-h.watch.stopped
		h.watch = nil
	}
	err := do(ctx, h.conn)
	if !last {
		h.timer.Reset(Brief)
	}
	return err
}

// lost tells the holder that the connection has ended, unless it has left, and gives the connection
// up: the core calls no Leave for a lock that is lost.
func (h *hold[C]) lost(cause error) {
	t, s := h.ticket, h.ticket.session
	s.mu.Lock()
	mine := t.attempt == h.attempt && !t.left && !t.gone
	if mine {
		t.gone = true
		delete(s.tickets, t)
	}
	s.mu.Unlock()
	if mine {
		s.gone(t.request.ID, fmt.Errorf("%w: the connection that held it has ended: %w", driver.ErrGone, cause))
		go h.drop() // which waits for the watch that may call this
	}
}

// drop ends the connection, unless it was given back.
func (h *hold[C]) drop() {
	_ = h.use(context.Background(), true, func(context.Context, C) error {
		h.ticket.session.store.Drop(h.conn)
		return nil
	})
}
