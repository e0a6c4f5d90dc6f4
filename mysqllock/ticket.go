package mysqllock

import (
	"context"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/bell"
)

// ticket is the grip on one entry.
type ticket struct {
	session *session
	request driver.Request
	bell    bell.Bell

	// Guarded by session.mu.
	sent      bool   // there may be an entry
	confirmed bool   // the store has answered that there is: it must not be made again
	held      bool   // and that it holds
	left      bool   // Leave was called: a late Enqueue must not make an orphan
	gone      bool   // the store has no such entry any more
	seq       uint64 // of the confirmed entry
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
	if t.held = t.held || a.held; t.held {
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
		case <-t.bell.Rings():
		case <-t.session.done.Done():
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		}
	}
}

// Leave removes the entry.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	sent := t.sent
	t.left = true
	s.mu.Unlock()
	if !sent {
		return driver.ErrGone
	}
	there, err := s.table.leave(ctx, s.table.work, t.request.Name, t.request.ID)
	if err != nil {
		return err
	}
	s.forget(t)
	if !there {
		return driver.ErrGone
	}
	return nil
}

// Publish replaces the value of the entry.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	st := t.session.table
	n, err := run(ctx, st.work, st.named("UPDATE {p}entries SET value = ?, edition = edition + 1 WHERE id = ?", value, t.request.ID))
	if err == nil && n == 0 {
		err = driver.ErrGone
	}
	return st.gone(err)
}
