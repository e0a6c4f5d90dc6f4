package sqlitelock

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// poll is how often a waiter looks.
const poll = 25 * time.Millisecond

type ticket struct {
	session *session
	request driver.Request

	// Guarded by session.mu.
	confirmed bool // the store has answered that the entry is there
	holds     bool // and that it holds
	left      bool // Leave has begun

	// As the last Enqueue has found them. The core makes one call of Enqueue or Wait at a time.
	seq   uint64
	units int64 // of the own entry and of those ahead
}

// Enqueue does all in one write transaction.
func (t *ticket) Enqueue(ctx context.Context) (v driver.Verdict, err error) {
	in := false
	err = t.session.backend.write(ctx, func(tx *sql.Tx) error {
		v, in, err = t.enter(ctx, tx)
		return err
	})
	switch {
	case in && err == nil:
		t.session.mu.Lock()
		t.confirmed, t.holds = true, v.Held
		t.session.mu.Unlock()
	case errors.Is(err, driver.ErrGone), errors.Is(err, driver.ErrRefused):
		t.session.forget(t) // there is no entry. After any other error there may be one.
	}
	return v, err
}

// enter finds the entry or makes it, and decides. in is false after a try that is refused.
func (t *ticket) enter(ctx context.Context, tx *sql.Tx) (v driver.Verdict, in bool, err error) {
	r := t.request
	queue, err := current(ctx, tx, r.Name, 0)
	if err != nil {
		return v, false, err
	}
	i := slices.IndexFunc(queue, func(e driver.Entry) bool { return e.ID == r.ID && e.Session == t.session.id })
	if i < 0 {
		held, _ := driver.Decide(queue, r)
		if err := driver.CheckKind(queue, r); err != nil || r.NoWait && !held {
			return driver.Verdict{Holder: queue[0].Owner}, false, err // somebody is in the way, so there is one
		}
		seq, err := t.insert(ctx, tx)
		if err != nil {
			return v, false, err
		}
		i, queue = len(queue), append(queue, driver.Entry{Request: r, Seq: seq})
	}
	t.seq, t.units = queue[i].Seq, 0
	for _, e := range queue[:i+1] {
		t.units += e.Units
	}
	// The units in the store, not those of the request: a Downgrade has made them less.
	if held, _ := driver.Decide(queue[:i], queue[i].Request); held {
		return driver.Verdict{Held: true, Token: queue[i].Seq}, true, nil
	}
	return driver.Verdict{Holder: queue[0].Owner, Place: driver.Place(queue[:i], r.Capacity)}, true, nil
}

// insert makes the entry, at the end of the queue: Seq is drawn by the statement that makes the
// row, and no other writer is at work. It is at least the clock in microseconds, so that tokens
// also grow after an older copy of the file was restored.
func (t *ticket) insert(ctx context.Context, tx *sql.Tx) (seq uint64, err error) {
	s, r := t.session, t.request
	if err := s.note(t); err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, `INSERT INTO hasp_entries
		(seq, name, id, session, units, capacity, owner, since, value, expires) VALUES
		(max(`+now+` * 1000, 1 + coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'hasp_entries'), 0)),
		 ?, ?, ?, ?, ?, ?, ?, ?, ? + `+now+`) RETURNING seq`,
		r.Name, r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixNano(), r.Value, until(s.opts.TTL)).Scan(&seq)
	return seq, err
}

// note has the entry renewed from now on. It is called inside the transaction that makes the
// entry. Leave and Close set their marks before they ask for a transaction: so either this finds
// the mark, or they delete what this makes. What was confirmed once and is missing now has
// expired or was evicted, and must not stand in the queue a second time.
func (s *session) note(t *ticket) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return driver.ErrClosed
	case t.left, t.confirmed:
		return driver.ErrGone
	}
	s.tickets[t.request.ID] = t
	return nil
}

// Wait looks until something has changed, and then asks. A look takes no write lock and judges
// nothing; it finds an expiry as well as a departure, so that nothing needs Verdict.Retry.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		units, err := t.look(ctx)
		if err != nil {
			return driver.Verdict{}, err
		}
		if units != t.units {
			return t.Enqueue(ctx)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		}
	}
}

// look sums the units up to the own entry. Nothing is ever inserted there, so each change of who
// is there, and each Downgrade, makes the sum smaller: no two changes can cancel out.
func (t *ticket) look(ctx context.Context) (units int64, err error) {
	err = t.session.backend.db.QueryRowContext(ctx, `SELECT coalesce(sum(units), 0) FROM hasp_entries
		WHERE name = ? AND seq <= ? AND expires > `+now, t.request.Name, t.seq).Scan(&units)
	return units, refine(ctx, err)
}

// Leave ends the renewal first: should it fail, the entry lasts for no longer than the TTL. A row
// that has expired counts as missing, deleted or not.
func (t *ticket) Leave(ctx context.Context) error {
	s := t.session
	s.mu.Lock()
	t.left = true
	delete(s.tickets, t.request.ID)
	s.mu.Unlock()
	return s.backend.change(ctx, `DELETE FROM hasp_entries WHERE `+own, t.own()...)
}

// own finds the ticket's living entry, by all three: an ID alone may be another client's, too.
const own = `session = ? AND name = ? AND id = ? AND expires > ` + now

func (t *ticket) own() []any { return []any{t.session.id, t.request.Name, t.request.ID} }
