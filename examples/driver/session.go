package sqlitelock

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

type session struct {
	backend *backend
	opts    driver.SessionOptions
	id      string

	mu      sync.Mutex
	closed  bool
	tickets map[string]*ticket // whose entries may be in the store, by ID
}

func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r}
}

// KeepAlive renews the entries one by one, by ID, and nothing that has expired (S6). An entry
// that is inserted from here on needs no renewal: it lasts for the TTL from then.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	entries, err := s.noted()
	if err != nil || len(entries) == 0 {
		return s.opts.TTL, cmp.Or(err, ctx.Err())
	}
	var missing []*ticket
	err = s.backend.write(ctx, func(tx *sql.Tx) error {
		for t, confirmed := range entries {
			err := exec(ctx, tx, `UPDATE hasp_entries SET expires = ? + `+now+` WHERE `+own,
				append([]any{until(s.opts.TTL)}, t.own()...)...)
			switch {
			case errors.Is(err, driver.ErrGone):
				if confirmed {
					missing = append(missing, t)
				}
			case err != nil:
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for _, t := range missing {
		if s.forget(t) { // else its owner has left meanwhile
			s.opts.Gone(t.request.ID, fmt.Errorf("%w: expired or evicted", driver.ErrGone))
		}
	}
	return s.opts.TTL, nil
}

// noted are the entries to renew, and whether the store has confirmed them. It is called before
// the store is looked at: an entry whose Enqueue is under way may be missing there, and is not
// gone for that; but if it is there, it must be renewed.
func (s *session) noted() (map[*ticket]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, driver.ErrClosed
	}
	entries := make(map[*ticket]bool, len(s.tickets))
	for _, t := range s.tickets {
		entries[t] = t.confirmed
	}
	return entries, nil
}

// Close marks first and deletes then. An Enqueue whose transaction comes before the deletion is
// undone by it, one that comes after it finds the mark.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	clear(s.tickets)
	s.mu.Unlock()
	err := s.backend.change(ctx, `DELETE FROM hasp_entries WHERE session = ?`, s.id)
	if errors.Is(err, driver.ErrGone) {
		return nil // there was nothing
	}
	return err
}

func (s *session) forget(t *ticket) (known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known = s.tickets[t.request.ID] == t
	delete(s.tickets, t.request.ID)
	return known
}
