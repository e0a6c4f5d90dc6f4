package pglock

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// note records the holder, for people. Without it the holder is shown without a name: so also the
// second of two names that have one number, which keep each other out and do no other harm.
func (b *bound) note(ctx context.Context, on runner, pid uint32, r driver.Request, g grant) error {
	key, err := keyOf(b.opts.Key, r.Name)
	if err != nil {
		return err
	}
	err = one(ctx, on, b.naming.sql("SELECT hasp_note($1::pg_catalog.text, $2::bigint, $3::bigint, $4::pg_catalog.text, $5::pg_catalog.text, $6::bigint, $7::int)::pg_catalog.text"),
		[]any{r.Name, key, int64(g.token), r.ID, r.Owner, r.Since.UnixMicro(), int64(pid)}, new(string))
	if sqlState(err) == "23505" {
		return nil
	}
	return err
}

// pooled reports whether a process of the server, whose number is in the record of a holder, may
// have served another client, or serve one later: behind a pooler in session mode it outlives our
// connection.
func (b *bound) pooled() bool { return b.dialer.seen.pooler == sessionPooler }

// recorder returns what records the holder once it has held for longHeld; nil where that is not
// done. It goes over the pool: on the lock's connection a renewal would wait behind it. So it may
// arrive when the lock has been given on. The record of a later holder has a greater token, and
// stays; one that has no record is on another connection, or on the same: there the next holder of
// the name finds it in noted, where it is before this is sent, and makes its record before it is
// told that it holds. The record stays after the release, so noted has every name since the
// connection was made, and a connection with many of them is not kept (bound.keep). Behind a pooler
// that does not suffice: the record may be another client's, of a connection to the same process,
// and so each holder makes its record before it is told.
func (t *boundTicket) recorder(c *pgxLink, g grant) func() {
	s := t.session
	if s.bound.opts.NoFence || s.bound.pooled() {
		return nil
	}
	return func() {
		if !slices.Contains(c.noted, t.request.Name) {
			c.noted = append(c.noted, t.request.Name)
		}
		go t.record(c.pid, g)
	}
}

// record records the holder, and while it holds tries again what has failed, or the holder would be
// shown without a name for as long as it holds. What was refused is not tried again. Made twice, or
// late, a record does no harm (recorder).
func (t *boundTicket) record(pid uint32, g grant) {
	s := t.session
	for over := false; !over; {
		ctx, cancel := context.WithTimeout(s.done, s.granted())
		err := s.bound.note(ctx, s.bound.pool, pid, t.request, g)
		cancel()
		if err == nil || errors.Is(err, driver.ErrRefused) {
			return
		}
		select {
		case <-s.done.Done():
			return
		case <-time.After(s.granted() / 2):
		}
		s.mu.Lock()
		over = t.left || t.gone
		s.mu.Unlock()
	}
}

// mostNoted is how many names a connection has in noted before it is given up: each lock looks for
// its name among them.
const mostNoted = 100

// noteMost is how long a reader waits for the record of a holder. Other programs make none.
const noteMost = time.Second

// recorded repeats a look at the locks until each has a holder with a name, or none can be
// expected.
func (b *bound) recorded(ctx context.Context, look func() (unnamed bool, err error)) error {
	for began := time.Now(); ; {
		unnamed, err := look()
		if err != nil || !unnamed || b.opts.NoFence || time.Since(began) > noteMost {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(longHeld / 2):
		}
	}
}
