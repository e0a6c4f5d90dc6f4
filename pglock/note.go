package pglock

import (
	"context"
	"slices"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/connlock"
)

// note records the holder, for people. Without it the holder is shown without a name: so also the
// second of two names that have one number, which keep each other out and do no other harm.
func (b *bound) note(ctx context.Context, on runner, pid uint32, r driver.Request, g connlock.Grant) error {
	key, err := keyOf(b.opts.Key, r.Name)
	if err != nil {
		return err
	}
	err = one(ctx, on, b.naming.sql("SELECT hasp_note($1::pg_catalog.text, $2::bigint, $3::bigint, $4::pg_catalog.text, $5::pg_catalog.text, $6::bigint, $7::int)::pg_catalog.text"),
		[]any{r.Name, key, int64(g.Token), r.ID, r.Owner, r.Since.UnixMicro(), int64(pid)}, new(string))
	if sqlState(err) == "23505" {
		return nil
	}
	return err
}

// pooled reports whether a process of the server, whose number is in the record of a holder, may
// have served another client, or serve one later: behind a pooler in session mode it outlives our
// connection.
func (b *bound) pooled() bool { return b.dialer.seen.pooler == sessionPooler }

// Recorder records over the pool: on the lock's connection a renewal would wait behind it. So it may
// arrive when the lock has been given on. Made twice, or late, a record does no harm. That of a later
// holder has a greater token, and stays; one that has no record is on another connection, or on the
// same: there the next holder of the name finds it in noted, where it is before this is sent, and
// makes its record before it is told that it holds. The record stays after the release, so noted has
// every name since the connection was made, and a connection with many of them is not kept
// (bound.Keep). Behind a pooler that does not suffice: the record may be another client's, of a
// connection to the same process, and so each holder makes its record before it is told.
func (b *bound) Recorder(c *pgxLink, r driver.Request, g connlock.Grant) func(context.Context) error {
	if b.opts.NoFence || b.pooled() {
		return nil
	}
	if !slices.Contains(c.noted, r.Name) {
		c.noted = append(c.noted, r.Name)
	}
	return func(ctx context.Context) error { return b.note(ctx, b.pool, c.pid, r, g) }
}

// mostNoted is how many names a connection has in noted before it is given up: each lock looks for
// its name among them.
const mostNoted = 100

// recorded repeats a look at the locks until each has a holder with a name, or none can be
// expected.
func (b *bound) recorded(ctx context.Context, look func() (unnamed bool, err error)) error {
	if b.opts.NoFence {
		_, err := look()
		return err
	}
	return connlock.Recorded(ctx, look)
}
