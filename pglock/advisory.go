package pglock

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/connlock"
)

// evictionLock is taken and released before a lock is acquired: schema/2.sql says why.
const evictionLock = "pg_advisory_lock_shared(1751216001, pg_backend_pid())::text, pg_advisory_unlock_shared(1751216001, pg_backend_pid())::text"

// Try asks, unless this is to wait and the name was taken lately: then the request that waits asks
// as well.
func (b *bound) Try(ctx context.Context, c *pgxLink, r driver.Request) (g connlock.Grant, err error) {
	key, err := keyOf(b.opts.Key, r.Name)
	switch {
	case err != nil:
	case b.opts.NoFence:
		err = one(ctx, c, "SELECT "+evictionLock+", pg_try_advisory_lock($1::bigint)", []any{key}, new(string), new(string), &g.Held)
		return g, err
	case r.NoWait:
		g, err = b.once(ctx, c, key, r)
	case !b.taken.Has(r.Name):
		g, err = b.free(ctx, c, key, r)
	}
	return b.recordAgain(ctx, c, r, g, err)
}

// Wait asks and, if the lock is taken, waits: in one statement, which answers when the lock is
// granted and says by a notice that it waits. Without a fence there is nothing of ours at the
// server, and it needs more statements.
func (b *bound) Wait(ctx context.Context, c *pgxLink, r driver.Request, taken func()) (g connlock.Grant, err error) {
	key, err := keyOf(b.opts.Key, r.Name)
	switch {
	case err != nil:
	case b.opts.NoFence:
		taken()
		return connlock.Grant{Held: true}, c.script(ctx, fmt.Sprintf(waitUnfencedSQL, key, b.opts.Slice.Milliseconds(), strings.ReplaceAll(atKey, "$1::bigint", fmt.Sprintf("(%d)::bigint", key))))
	default:
		g, err = b.obtain(ctx, c, key, r, taken)
	}
	return b.recordAgain(ctx, c, r, g, err)
}

// recordAgain records the holder at once, on a connection on which a record of an earlier one was
// made or is under way, or may have been made by another client: see Recorder.
func (b *bound) recordAgain(ctx context.Context, c *pgxLink, r driver.Request, g connlock.Grant, err error) (connlock.Grant, error) {
	if err == nil && g.Held && (b.pooled() || slices.Contains(c.noted, r.Name)) {
		err = b.note(ctx, c, c.pid, r, g)
	}
	return g, err
}

// freeSQL takes a lock that is free and that no client waits for, and its token. CASE has the
// number drawn after the lock, and only then: PostgreSQL promises that of CASE, but of nothing else
// in an expression, where no part is constant. It is plain SQL because a function and a procedure,
// as hasp_obtain is, take the server half as much time again.
//
// The block of tokens is not read here: a statement sees tables as they were before it had the
// lock. The connection knows its block, and judges the number by it, as hasp_token does.
const freeSQL = "SELECT " + evictionLock + `,
	CASE WHEN NOT EXISTS (SELECT FROM hasp_queues n WHERE n.name OPERATOR(pg_catalog.=) $1::pg_catalog.text
			AND n.tail OPERATOR(pg_catalog.>) n.served AND hasp_has_waiters($1::pg_catalog.text))
		THEN CASE WHEN pg_catalog.pg_try_advisory_lock($2::bigint) THEN pg_catalog.nextval($q$hasp_tokens$q$::pg_catalog.regclass) END END,
	hasp_now(), pg_catalog.set_config('synchronous_commit'::pg_catalog.text, 'off'::pg_catalog.text, true), $3::pg_catalog.text`

// once is for one who will not wait, and is told who holds.
func (b *bound) once(ctx context.Context, c *pgxLink, key int64, r driver.Request) (connlock.Grant, error) {
	var seq, base, most *int64
	var holder *string
	err := one(ctx, c, b.naming.sql(`SELECT a.*, $5::pg_catalog.text
		FROM hasp_try($1::pg_catalog.text, $2::bigint, $3::bigint, $4::bigint) a`),
		[]any{r.Name, key, c.base, c.most, r.ID}, &seq, &base, &most, &holder, echo(r.ID))
	c.reserved(base, most)
	return granted(seq, holder), err
}

// free takes the lock and its token if it is free and no client waits for it: freeSQL.
func (b *bound) free(ctx context.Context, c *pgxLink, key int64, r driver.Request) (connlock.Grant, error) {
	var seq, base, most *int64
	var now int64
	err := one(ctx, c, b.naming.sql(freeSQL), []any{r.Name, key, r.ID}, new(string), new(string), &seq, &now, new(string), echo(r.ID))
	switch {
	case err != nil:
	case seq == nil:
		b.taken.Met(r.Name, true)
	case !c.mayUse(*seq, now):
		// The lock is ours, and this number is left out. A client that ends here ends the lock,
		// too.
		err = one(ctx, c, b.naming.sql("SELECT r.*, $2::pg_catalog.text FROM hasp_raise($1::bigint) r"), []any{c.most, r.ID}, &seq, &base, &most, echo(r.ID))
		c.reserved(base, most)
	}
	return granted(seq, nil), err
}

// obtain waits for the lock, and has its token: hasp_obtain.
func (b *bound) obtain(ctx context.Context, c *pgxLink, key int64, r driver.Request, taken func()) (connlock.Grant, error) {
	var seq, base, most *int64
	waited := false
	c.taken = func() { waited = true; taken() }
	err := one(ctx, c, b.naming.sql("CALL hasp_obtain($1::pg_catalog.text, $2::bigint, $3::pg_catalog.text, $4::bigint, $5::bigint, $6::int, NULL::bigint, NULL::bigint, NULL::bigint, NULL::pg_catalog.text)"),
		[]any{r.Name, key, r.ID, c.base, c.most, b.opts.Slice.Milliseconds()}, &seq, &base, &most, echo(r.ID))
	c.taken = nil
	c.reserved(base, most)
	b.taken.Met(r.Name, waited)
	return granted(seq, nil), err
}

func granted(seq *int64, holder *string) (g connlock.Grant) {
	if seq != nil {
		g.Held, g.Token = true, uint64(*seq)
	}
	if holder != nil {
		g.Holder = *holder
	}
	return g
}

// tokenBehind is by how many microseconds a token may be behind the server's clock: see hasp_token.
const tokenBehind = 10_000_000

// mayUse judges a number of the sequence, which is drawn when the lock is held: see hasp_token.
func (l *pgxLink) mayUse(seq, now int64) bool {
	return l.base <= seq && seq <= l.most && seq > now-tokenBehind
}

// reserved notes the block that the server has answered with.
func (l *pgxLink) reserved(base, most *int64) {
	if base != nil && most != nil {
		l.base, l.most = *base, *most
	}
}

// waitUnfencedSQL waits in slices as hasp_obtain does, and commits between them; but without tables
// there are no positions: after each slice this waiter is at the end of the server's queue again. A
// slice that ends at the moment of the grant may fail and leave the lock with the connection (see
// hasp_holds in schema/2.sql): so that is looked for after each. Rejected: a statement for each
// slice, each of which would fail and fill the server's log.
const waitUnfencedSQL = `DO $$ BEGIN
  LOOP
    PERFORM set_config('lock_timeout', '%[2]d', true);
    BEGIN
      PERFORM pg_advisory_lock(%[1]d);
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      EXIT WHEN EXISTS (SELECT FROM pg_locks l WHERE l.pid = pg_backend_pid() AND %[3]s);
    END;
    COMMIT;
  END LOOP;
END $$`

// Release ends the connection unless the server has confirmed that it holds nothing now.
func (b *bound) Release(ctx context.Context, c *pgxLink, r driver.Request) error {
	key, err := keyOf(b.opts.Key, r.Name)
	if err != nil {
		return err
	}
	held := false
	if err = one(ctx, c, "SELECT pg_advisory_unlock($1::bigint)", []any{key}, &held); err == nil && held {
		b.Keep(c)
		return nil
	}
	c.close()
	switch {
	case err == nil:
		return driver.ErrGone
	case endedBefore(err) && ctx.Err() == nil: // not because we have ended it
		return fmt.Errorf("%w: the server had ended the connection: %w", driver.ErrGone, err)
	}
	return explain(ctx, err)
}

// Confirm has the server end a connection that we gave up without an answer: a network that
// swallowed the answer may have swallowed the end of the connection, too. A holder without a name is
// another client's if a pooler may have given that the same process: behind one ours has a name, or
// with fence=off none has.
func (b *bound) Confirm(ctx context.Context, c *pgxLink, r driver.Request) error {
	ours := "" // the entry as it is listed: a number that was used again is another's
	err := b.eachHolder(ctx, r.Name, func(e driver.Entry, pid int64) {
		if uint32(pid) == c.pid && (e.ID == r.ID || e.ID == e.Session && !b.pooled()) {
			ours = e.ID
		}
	})
	if err == nil && ours == "" {
		err = driver.ErrGone
	}
	if err == nil {
		_, err = b.end(ctx, r.Name, ours, int64(c.pid))
	}
	if err == nil {
		err = fmt.Errorf("the server's process %d still holds the lock for a connection that has ended; it was told to end", c.pid)
	}
	return err
}

func (b *bound) Ping(ctx context.Context, c *pgxLink) (broken bool, err error) {
	err = c.script(ctx, "SELECT 1")
	if sqlState(err) != "" && !c.broken() {
		err = nil // it has answered
	}
	return c.broken(), err
}

// Watch reads what comes unasked, such as the news of a setting. Nothing is listened to.
func (b *bound) Watch(ctx context.Context, c *pgxLink) (err error) {
	for err == nil {
		err = c.wait(ctx, func(string, string) {})
	}
	return err
}

// holders finds the holder of a name: the server's lock table says which of its processes, our
// table which entry, if it is one of ours.
func (b *bound) holders(name string) (query string, args []any, err error) {
	key, err := keyOf(b.opts.Key, name)
	return `SELECT l.pid, coalesce(h.seq, 0), coalesce(h.id, ''), coalesce(h.owner, ''), coalesce(h.since, 0)
		FROM pg_locks l LEFT JOIN hasp_holders h ON h.name = $2::text AND h.pid = l.pid WHERE ` + atKey, []any{key, name}, err
}

// holdersWithoutTables is holders for a database without our tables, where no holder has a name.
func (b *bound) holdersWithoutTables(name string) (query string, args []any, err error) {
	key, err := keyOf(b.opts.Key, name)
	return `SELECT l.pid, 0::bigint, '', '', 0::bigint FROM pg_locks l WHERE ` + atKey, []any{key}, err
}

// isAdvisory picks the locks that are held, atKey those with a key, isHolders those of a row in
// holders.
const (
	isAdvisory = `l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
		AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	atKey     = isAdvisory + ` AND l.classid::bigint = ($1::bigint >> 32) & 4294967295 AND l.objid::bigint = $1::bigint & 4294967295`
	isHolders = `l.pid = h.pid AND l.classid::bigint = (h.key >> 32) & 4294967295 AND l.objid::bigint = h.key & 4294967295`
)

// namesSQL finds the names that are held, by the key that each had when it was granted.
const namesSQL = `SELECT h.name FROM hasp_holders h JOIN pg_locks l ON ` + isHolders + ` WHERE ` + isAdvisory + ` AND starts_with(h.name, $1::text)`

// anyUnnamedSQL asks whether a lock is held whose holder is not recorded, and may be soon: a
// connection that has been idle for longer holds one of another program's, or of another prefix.
const anyUnnamedSQL = "SELECT EXISTS (SELECT FROM pg_locks l LEFT JOIN pg_stat_activity s ON s.pid = l.pid WHERE " + isAdvisory +
	" AND NOT EXISTS (SELECT FROM hasp_holders h WHERE " + isHolders + ") AND (s.state_change > clock_timestamp() - interval '1 second') IS NOT FALSE)"
