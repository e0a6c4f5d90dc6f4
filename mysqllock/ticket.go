package mysqllock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/signal"
)

// ticket is the grip on one entry.
type ticket struct {
	session *session
	request driver.Request
	bell    signal.Signal

	// Guarded by session.mu.
	sent      bool   // there may be an entry
	confirmed bool   // the store has answered that there is: it must not be made again
	held      bool   // and that it holds
	left      bool   // Leave was called: a late Enqueue must not make an orphan
	gone      bool   // the store has no such entry any more
	seq       uint64 // of the confirmed entry
	granted   uint64 // the Seq that the listening brought, perhaps before our request was answered
	server    uint64 // session.server when it was to leave
	editions  uint64 // the number of the last publication
}

// state is what is known without asking.
func (t *ticket) state() (v driver.Verdict, confirmed, gone bool) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.held {
		v = driver.Verdict{Held: true, Token: t.seq}
	}
	return v, t.confirmed, t.gone || s.closed
}

// Enqueue makes the entry, or asks for it once it has been confirmed: what has been there
// and is not any more must not be made again.
//
// If the answer is lost, the request may still be under way at the server. Asked again, it
// finds the entry by its unique id. If instead the ticket leaves, and the request arrives
// after that, the entry is found by the next renewal, which compares what the store has of
// this session with what the session knows.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := s.register(t); err != nil {
		return driver.Verdict{}, err
	}
	_, confirmed, _ := t.state()
	mode := modeWait
	switch {
	case confirmed:
		mode = modeAsk
	case t.request.NoWait:
		mode = modeTry
	}
	a, err := s.table.enter(ctx, s.id, mode, t.request)
	if err != nil {
		return driver.Verdict{}, err
	}
	return t.answered(a)
}

// answered takes note of what enter said.
func (t *ticket) answered(a answer) (driver.Verdict, error) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close remove what this made
	case a.said == saidBusy:
		s.forgetLocked(t)
		return driver.Verdict{Holder: a.holder}, nil
	case a.said == saidMismatch:
		s.forgetLocked(t)
		return driver.Verdict{}, mismatch(t.request, a.capacity)
	case a.said == saidGone:
		s.goneLocked(t)
		return driver.Verdict{}, driver.ErrGone
	}
	t.confirmed, t.seq = true, a.seq
	// The grant may have overtaken the answer that says "wait": the listening hears of it on
	// another connection, and is told once.
	if t.held = t.held || a.held || t.granted == a.seq; t.held {
		return driver.Verdict{Held: true, Token: t.seq}, nil
	}
	s.listenLocked()
	return driver.Verdict{Retry: s.retry()}, nil
}

// Wait returns when the listening, or a renewal, has brought news.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	for {
		v, _, gone := t.state()
		switch {
		case gone:
			return driver.Verdict{}, driver.ErrGone
		case v.Held:
			return v, nil
		}
		select {
		case <-t.bell.C():
		case <-t.session.done.Done():
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		}
	}
}

// errForgotten is the answer to a Leave that finds nothing, after one that was not answered, if
// the store may have lost the entry by itself.
var errForgotten = fmt.Errorf("there is no such entry, but another server answers, or it was started anew: %w", driver.ErrForgotten)

// Leave removes the entry.
//
// If the answer is lost, the core asks again, and takes "no such entry" for the first one's
// success. That holds for a store that forgets nothing. A replica that was promoted without
// the newest commits has forgotten grants, and so has a server that crashed before they were
// on its disk: the lock may have been another's before the first Leave was sent. Both can be
// seen, since the answer says which run of which server gives it, and then it is not known
// what the first Leave did. A restart that forgot nothing looks the same: it too makes an
// unknown of a release whose answer was lost, and of no other.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	sent, again := t.sent, t.left
	if !again {
		t.left, t.server = true, s.server
	}
	s.mu.Unlock()
	if !sent {
		return driver.ErrGone
	}
	there, server, err := s.table.leave(ctx, s.table.work, t.request.Name, t.request.ID)
	if err = s.table.gone(err); err != nil && !errors.Is(err, driver.ErrGone) {
		return err
	}
	if !there && again && server != t.server { // without the tables, server is 0
		s.drop(t)
		return errForgotten
	}
	s.forget(t)
	if !there {
		return driver.ErrGone
	}
	return nil
}
