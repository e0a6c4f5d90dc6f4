package pglock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/signal"
)

// ticket is the grip on one entry.
type ticket struct {
	session *session
	request driver.Request

	// Guarded by session.mu.
	sent      bool   // there may be an entry
	confirmed bool   // the store has answered that there is: it must not be made again
	held      bool   // and that it holds
	left      bool   // Leave was called: a late Enqueue must not make an orphan
	gone      bool   // the store has no such entry any more
	missed    bool   // notifications may have been lost: ask
	seq       int64  // of the confirmed entry
	granted   int64  // the seq that a message granted, perhaps before our request was answered
	published int64  // how often Publish was called
	where     string // where the entry was made, or seen by a renewal since: see missing
	ahead     int64  // how many waited in front at the last answer, counted to four
	bell      signal.Signal
}

// answer is what hasp_enter says.
type answer struct {
	state             string
	seq, retry, ahead int64
	holder            string
}

// Enqueue makes the entry, or asks for it once it has been confirmed.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := s.register(t); err != nil {
		return driver.Verdict{}, err
	}
	if v, ok := t.pushed(); ok {
		return v, nil
	}
	var a answer
	err := s.table.ask(ctx, `SELECT e.*, $4::pg_catalog.text FROM hasp_enter($1::pg_catalog.text, $2::boolean, hasp_turn($3::pg_catalog.text, 16),
		$4::pg_catalog.text, $5::pg_catalog.text, $6::bigint, $7::bigint, $8::pg_catalog.text, $9::bigint, $10::pg_catalog.bytea) e`, t.arguments(),
		&a.state, &a.seq, &a.retry, &a.ahead, &a.holder, echo(t.request.ID))
	if err != nil {
		if noSchema(err) {
			return driver.Verdict{}, s.dead()
		}
		return driver.Verdict{}, err
	}
	if a.state == "dead" {
		return driver.Verdict{}, s.dead()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return t.heardLocked(a)
}

// arguments of hasp_enter. The mode says what may be there already: an ID that was never
// sent needs no looking for.
func (t *ticket) arguments() []any {
	s, r := t.session, t.request
	s.mu.Lock()
	defer s.mu.Unlock()
	mode := "first"
	switch {
	case t.confirmed:
		mode = "ask"
	case t.sent:
		mode = "again"
	}
	t.sent, t.missed = true, false
	if mode == "first" {
		t.where = s.where
	}
	value := r.Value
	if value == nil {
		value = []byte{}
	}
	return []any{mode, r.NoWait, r.Name, r.ID, s.id, r.Units, r.Capacity, r.Owner, r.Since.UnixMicro(), value}
}

func (t *ticket) heardLocked(a answer) (driver.Verdict, error) {
	s := t.session
	if t.left || s.closed {
		// Leave and Close removed what this made; if it arrived after them, the next renewal
		// finds it.
		return driver.Verdict{}, errSessionClosed
	}
	switch a.state {
	case "held", "wait":
		t.confirmed, t.seq, t.ahead = true, a.seq, a.ahead
		t.held = t.held || a.state == "held" || t.granted == a.seq
		return t.verdictLocked(a), nil
	case "gone":
		s.goneLocked(t)
		return driver.Verdict{}, fmt.Errorf("%w: no such entry", driver.ErrGone)
	}
	t.sent = false
	delete(s.tickets, t.request.ID)
	if a.state == "other" {
		return driver.Verdict{}, &driver.MismatchError{Name: t.request.Name, Want: t.request.Capacity, Found: a.seq}
	}
	return driver.Verdict{Holder: a.holder}, nil // busy
}

// pushed answers without a request if a message has brought the grant.
func (t *ticket) pushed() (driver.Verdict, bool) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.held || t.gone || s.closed || !t.confirmed || t.granted != t.seq {
		return driver.Verdict{}, false
	}
	t.held = true
	return t.verdictLocked(answer{}), true
}

// leastRetry keeps those who ask because a holder seems to have expired from asking in a
// loop while its row is locked.
const leastRetry = 20 * time.Millisecond

// verdictLocked says when to ask. Nobody notifies an expiry, so the first in line watch
// over it: one would do, more cover those who die together. Whoever stands further back
// asks once in a TTL, in case all of these died.
func (t *ticket) verdictLocked(a answer) driver.Verdict {
	if t.held {
		return driver.Verdict{Held: true, Token: uint64(t.seq)}
	}
	retry := t.session.opts.TTL
	if a.ahead < 4 {
		retry = max(time.Duration(a.retry)*time.Microsecond, leastRetry) + time.Duration(1+a.ahead)*time.Millisecond
	}
	return driver.Verdict{Retry: retry, Holder: a.holder}
}

// pollLocked fires when it is time to ask, where no message will come; else never. The first in
// line asks every Poll and the others less often: a hand-over then costs as many questions
// as the first few ask in that time, whatever the length of the queue.
func (t *ticket) pollLocked() (<-chan time.Time, func() bool) {
	if t.session.table.links.hears() {
		return nil, func() bool { return false }
	}
	poll := time.Duration(1+t.ahead) * t.session.table.opts.Poll
	timer := time.NewTimer(poll*3/4 + rand.N(poll/2))
	return timer.C, timer.Stop
}

// Wait returns what a message has brought, or asks where none will come.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	for {
		if v, ok := t.pushed(); ok {
			return v, nil
		}
		s.mu.Lock()
		switch {
		case t.gone || s.closed:
			s.mu.Unlock()
			return driver.Verdict{}, driver.ErrGone
		case t.held:
			v := t.verdictLocked(answer{})
			s.mu.Unlock()
			return v, nil
		case t.missed:
			t.missed = false
			s.mu.Unlock()
			return driver.Verdict{Retry: time.Millisecond + rand.N(50*time.Millisecond)}, nil // not all at once
		}
		poll, stop := t.pollLocked()
		s.mu.Unlock()
		select {
		case <-t.bell.C():
		case <-poll:
			return t.Enqueue(ctx)
		case <-s.done.Done():
		case <-ctx.Done():
			stop()
			return driver.Verdict{}, ctx.Err()
		}
		stop()
	}
}

// Leave removes the entry. Until that is answered the entry is not a stray one that a
// renewal may clean up: the answer would otherwise be "not there" for a good release.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	sent := t.sent
	t.left = true
	delete(s.tickets, t.request.ID)
	if sent {
		s.leaving[t.request.ID] = t
	}
	s.mu.Unlock()
	if !sent {
		return driver.ErrGone
	}
	there, where, err := s.table.leave(ctx, t.request.Name, s.id, t.request.ID)
	if err == nil && !there {
		err = t.missing(where)
	}
	if err != nil && !noSchema(err) {
		return err
	}
	s.mu.Lock()
	delete(s.leaving, t.request.ID)
	s.mu.Unlock()
	if !there {
		return driver.ErrGone
	}
	return nil
}

// errElsewhere is for an entry that is not there, and no wonder.
var errElsewhere = fmt.Errorf("another server answers than the one that had the entry (a replica was promoted, a backup restored): %w", driver.ErrForgotten)

// missing says what it means that a server has no such entry. Usually that a Leave before this one
// was applied, and its answer lost. But a replica that is promoted without having every commit
// has forgotten the entry, or has never had it, and may have granted its lock to somebody else
// before the release: whether it was kept to the end nobody knows. The server and its timeline
// tell the two apart: each promotion begins another.
func (t *ticket) missing(where string) error {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.where != where || where == "" {
		return errElsewhere
	}
	return nil
}

// leave also answers where it asked, if the entry is not there.
func (t *tables) leave(ctx context.Context, name, session, id string) (there bool, where string, err error) {
	err = t.ask(ctx, `SELECT l.there, CASE WHEN l.there THEN '' ELSE hasp_where() END, $3::pg_catalog.text
		FROM hasp_leave(hasp_turn($1::pg_catalog.text, 0), $2::pg_catalog.text, $3::pg_catalog.text) l(there)`,
		[]any{name, session, id}, &there, &where, echo(id))
	return there, where, err
}

// Publish replaces the value of the held entry. Each call has a number, so that one that the
// network delivers late does not take the place of a later one's value.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	if value == nil {
		value = []byte{}
	}
	s := t.session
	s.mu.Lock()
	t.published++
	n := t.published
	s.mu.Unlock()
	var there bool
	err := s.table.ask(ctx, "SELECT hasp_publish(hasp_level($1::pg_catalog.text), $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.bytea, $5::bigint)",
		[]any{t.request.Name, s.id, t.request.ID, value, n}, &there)
	if err == nil && !there {
		err = driver.ErrGone
	}
	return err
}
