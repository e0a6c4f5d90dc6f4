package pglock

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// row is strategy=row: SELECT ... FOR UPDATE on the name's row, found by its primary key so
// that only a row is locked, in a transaction that stays open for as long as the lock is
// held.
//
// The connection may break while the token is drawn on another one. The row's next holder can then draw
// before us, and our token, of a lock that is lost already, would be the greater one. So the connection
// is asked once more: if it answers, the row was ours when the token was drawn, and every later
// holder draws a greater one.
type row struct{}

func (row) check(string) error { return nil }

// try begins the transaction and locks the row.
func (w row) try(ctx context.Context, b *bound, c *pgxLink, r driver.Request) (g grant, err error) {
	held, err := w.lock(ctx, b, c, r.Name, "NOWAIT")
	switch {
	case err == nil && held:
		return w.granted(ctx, b, c, r)
	case err == nil && r.NoWait && !b.opts.NoFence:
		err = b.ask(ctx, holderSQL, []any{r.Name}, &g.holder)
	}
	return g, err
}

// holderSQL is holders in one round trip. The last holder that was recorded may have released: who has the row now
// has recorded nothing yet, or with fence=off never, or is another program. One that commits meanwhile is named, or not.
const holderSQL = `SELECT coalesce((SELECT h.owner FROM hasp_rows r
		JOIN pg_catalog.pg_locks l ON l.locktype OPERATOR(pg_catalog.=) 'transactionid'::pg_catalog.text AND l.granted AND l.transactionid OPERATOR(pg_catalog.=) r.xmax
		JOIN hasp_holders h ON h.name OPERATOR(pg_catalog.=) r.name AND h.pid OPERATOR(pg_catalog.=) l.pid
		WHERE r.name OPERATOR(pg_catalog.=) $1::pg_catalog.text), ''::pg_catalog.text)`

// wait waits for the row. It is called when try has found it locked.
func (w row) wait(ctx context.Context, b *bound, c *pgxLink, r driver.Request, taken func()) (grant, error) {
	taken()
	if err := w.queue(ctx, b, c, r.Name); err != nil {
		return grant{}, err
	}
	return w.granted(ctx, b, c, r)
}

// granted draws the token of a row that is locked, by another connection: drawn in this transaction it would be
// undone with it, and given out a second time.
func (w row) granted(ctx context.Context, b *bound, c *pgxLink, r driver.Request) (grant, error) {
	if b.opts.NoFence {
		return grant{held: true}, nil
	}
	var seq int64
	err := b.ask(ctx, "SELECT hasp_grant($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::bigint, $5::int)",
		[]any{r.Name, r.ID, r.Owner, r.Since.UnixMicro(), int64(c.pid)}, &seq)
	if err == nil {
		err = one(ctx, c, "SELECT 1", nil, new(int))
	}
	return grant{held: true, token: uint64(seq)}, err
}

// queue waits for its turn, and then for the row, in slices: schema/1.sql says why. The position
// is the connection's, not the transaction's; it is given back when the row is locked.
func (w row) queue(ctx context.Context, b *bound, c *pgxLink, name string) error {
	ms := b.slice.Milliseconds()
	var position int64
	err := one(ctx, c, b.naming.sql("CALL hasp_queue_up($1::pg_catalog.text, $2::int, NULL::bigint)"), []any{name, ms}, &position)
	for held := false; err == nil && !held; {
		held, err = w.lock(ctx, b, c, name, fmt.Sprintf("SET LOCAL lock_timeout = %d", ms))
	}
	if err == nil {
		err = one(ctx, c, b.naming.sql("SELECT hasp_give_back($1::pg_catalog.text, $2::bigint)::pg_catalog.text"), []any{name, position}, new(string))
	}
	return err
}

// lock begins the transaction and locks the row: at once (NOWAIT), or after a setting that
// bounds the waiting.
func (w row) lock(ctx context.Context, b *bound, c *pgxLink, name, how string) (held bool, err error) {
	begin := "BEGIN ISOLATION LEVEL READ COMMITTED; SELECT " + evictionLock
	stmt := "SELECT r.name FROM hasp_rows r WHERE r.name = $1::pg_catalog.text FOR UPDATE"
	if how == "NOWAIT" {
		stmt += " NOWAIT"
	} else {
		begin += "; " + how
	}
	for range 2 {
		if err := c.script(ctx, begin); err != nil {
			return false, err
		}
		err = c.each(ctx, b.naming.sql(stmt), []any{name}, anyNumber, func(scan func(...any) error) error {
			held = true
			return scan(new(string))
		})
		if held && err == nil {
			return true, nil
		}
		if back := c.script(ctx, "ROLLBACK"); back != nil {
			return false, back
		}
		if sqlState(err) == lockNotAvailable {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		// A new name, or one that was swept. Its row is made and committed before it is locked:
		// one that is made in the open transaction is invisible to all others, and so each
		// client would lock a different row.
		// (It is made once: a statement that is prepared for it would be a round trip more.)
		if err := one(ctx, plainly(c.conn), b.naming.sql("SELECT hasp_row($1::pg_catalog.text)::pg_catalog.text"), []any{name}, new(string)); err != nil {
			return false, err
		}
	}
	return false, errors.New("the row of the lock was removed while it was made")
}

// release ends the transaction.
func (k row) release(ctx context.Context, b *bound, c *pgxLink, r driver.Request) (held bool, err error) {
	held = k.holds(c)
	return held, c.script(ctx, "COMMIT")
}

// holds looks at the transaction. A statement that fails in it, as one that an administrator cancels, aborts it, and the server
// gives its row up at once, not at its end; the connection stands, and answers on.
func (row) holds(c *pgxLink) bool { return c.conn.PgConn().TxStatus() == 'T' }

// holders finds the transaction that has locked the row: its number is in the row.
func (row) holders(name string) (query string, args []any, err error) {
	return `SELECT l.pid, coalesce(h.seq, 0), coalesce(h.id, ''), coalesce(h.owner, ''), coalesce(h.since, 0)
		FROM hasp_rows r JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax
		LEFT JOIN hasp_holders h ON h.name = r.name AND h.pid = l.pid
		WHERE r.name = $1::text`, []any{name}, nil
}

func (row) names() string {
	return `SELECT r.name FROM hasp_rows r JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = r.xmax
		WHERE starts_with(r.name, $1::text)`
}
