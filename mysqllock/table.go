package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/driver"
)

// table is the strategy of the queues in tables. schema/1.sql says how they work and in
// which order rows are locked.
type table struct{ *store }

// minTTL leaves a renewal time for two commits on a slow disk.
const minTTL = 200 * time.Millisecond

// Traits: everything but push. A waiting client has one call under way in which the server
// looks, for all it waits for; nobody tells it.
//
// Not Forgets: a server whose commits are durable forgets nothing, and a release whose answer
// was lost is confirmed by asking again. Where it may have forgotten, since another server or
// another run of it answers, Leave does not say ErrGone (see session.Leave).
func (t *table) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true,
		Liveness: driver.Leased, MinTTL: minTTL,
	}
}

// Open starts a session: a row with its expiry, and a connection for its renewals. The
// expiry is set by a moment that the server takes after the call was made.
func (t *table) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := t.fit(ctx); err != nil {
		return nil, 0, err
	}
	s := newSession(t, o)
	var server uint64
	err := s.renewal.do(ctx, func(c *sql.Conn) error {
		err := row(ctx, c, t.named("CALL {p}open_1(?, ?)", s.id, o.TTL.Microseconds()), &server)
		if err == nil && rand.N(sweepFirst) == 0 {
			t.sweep(ctx, c)
		}
		return err
	})
	if err != nil {
		t.lookAgain(err)
		s.End()
		s.renewal.rest()
		return nil, 0, err
	}
	s.Begun(origin(server))
	return s, o.TTL, nil
}

// lookAgain has the next session see to the tables if they are missing.
func (t *table) lookAgain(err error) {
	if missing(err) {
		t.schema.broken.Store(true)
		t.passed.reset()
	}
}

// gone turns "no such table" into what it means for entries that were in it.
func (t *table) gone(err error) error {
	if !missing(err) {
		return err
	}
	t.lookAgain(err)
	return fmt.Errorf("%w: %w", driver.ErrGone, err)
}

// answer is what enter said.
type answer struct {
	said     int
	seq      uint64
	held     bool
	capacity int64
	stale    int // what is left of the dead, if the answer is not that we hold
	holder   string
}

// What enter says, apart from 0.
const (
	saidBusy = iota + 1
	saidMismatch
	saidGone
)

// What is left of the dead.
const (
	staleSessions = iota + 1 // somewhere, and nobody removes it
	staleEntries             // in this queue, and somebody does, who takes a second at most
)

// The modes of enter.
const (
	modeWait = iota
	modeTry
	modeAsk
)

// removalPause is how often is looked whether somebody else has removed the dead.
const removalPause = 20 * time.Millisecond

// passDead removes what the dead have left, or gives whoever is at it a moment.
func (t *table) passDead(ctx context.Context, stale int) error {
	if stale == staleSessions {
		return t.removeDead(ctx, t.work)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(removalPause):
		return nil
	}
}

// enter makes an entry, or asks for it. What the dead have left is removed if it may be in
// the way, and then it is asked again: once by whoever waits, since the next time is only as far
// as Retry; by whoever does not until nothing is left to be removed, for he does not come back.
func (t *table) enter(ctx context.Context, session string, mode int, r driver.Request) (answer, error) {
	a, err := t.enterOnce(ctx, session, mode, r)
	for again := true; again && err == nil && a.stale > 0; {
		if err := t.passDead(ctx, a.stale); err != nil {
			return a, nil // somebody else will; the first answer is as true as before
		}
		if a.said == 0 {
			mode = modeAsk
		}
		next, err := t.enterOnce(ctx, session, mode, r)
		if err != nil {
			if a.said == 0 {
				return a, nil
			}
			return next, err
		}
		a, again = next, next.said == saidBusy || next.said == saidMismatch
	}
	return a, err
}

func (t *table) enterOnce(ctx context.Context, session string, mode int, r driver.Request) (a answer, err error) {
	text := t.named("CALL {p}enter_1(?, ?, ?, ?, ?, ?, ?, ?, ?)",
		mode, r.Name, r.ID, session, r.Units, r.Capacity, r.Since.UnixMicro(), r.Owner, r.Value)
	var seq sql.Null[uint64]
	var capacity sql.NullInt64
	var holder sql.NullString
	if err := row(ctx, t.work, text, &a.said, &seq, &a.held, &capacity, &a.stale, &holder); err != nil {
		return a, t.gone(err)
	}
	a.seq, a.capacity, a.holder = seq.V, capacity.Int64, holder.String
	return a, nil
}

// leave removes an entry, whoever's it is, and reports whether it was there, and which run of
// which server said so.
func (t *table) leave(ctx context.Context, q querier, name, id string) (there bool, server uint64, err error) {
	err = row(ctx, q, t.named("CALL {p}leave_1(?, ?)", name, id), &there, &server)
	return there, server, err
}

// errSilent ends a call that the server should have answered by itself.
var errSilent = errors.New("no answer")
