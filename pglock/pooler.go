package pglock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp/driver"
)

// What may stand between us and the server.
const (
	sessionPooler     = "session"
	transactionPooler = "transaction"
)

// examineFirst examines the server on a separate connection: those of a pool may all be in use.
func (d *dialer) examineFirst(ctx context.Context, o Options) error {
	conn, err := d.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer (&pgxLink{conn: conn}).close()
	return d.examine(ctx, conn, o)
}

// examine examines the server and what stands before it: a pool that hands a connection out for
// the time of a transaction breaks all that belongs to a connection. LISTEN then has no effect, a
// prepared statement is missing, and an advisory lock is held by another client's connection.
func (d *dialer) examine(ctx context.Context, conn *pgx.Conn, o Options) error {
	r := plainly(conn)
	var pid int64
	var replica bool
	var version string
	if err := one(ctx, r, "SELECT pg_catalog.pg_backend_pid()::bigint, pg_catalog.pg_is_in_recovery(), pg_catalog.current_database(), pg_catalog.version()", nil, &pid, &replica, &d.seen.database, &version); err != nil {
		return err
	}
	if err := refuseServer(replica, version+" "+d.cfg.Host); err != nil {
		return err
	}
	d.seen.listens = true
	// Usually a pool greets with another number. One that greets with that of the server's
	// process is taken for the server, unless two could hold because of it; table fails behind it,
	// and `hasp doctor` says why.
	greets := uint32(pid) == conn.PgConn().PID()
	if !greets || o.Strategy == StrategyAdvisory {
		if err := d.examinePooler(ctx, conn, greets); err != nil {
			return err
		}
	}
	if o.NoListen {
		d.seen.listens = false
	}
	if d.seen.pooler == transactionPooler && o.Strategy != StrategyTable {
		return refusePooler(string(o.Strategy))
	}
	return nil
}

// poolPatience is how long the examination waits for a pool, and poolSilence for an answer that a
// pool which hands nothing out gives at once.
const (
	poolPatience = 5 * time.Second
	poolSilence  = time.Second
)

// examinePooler finds out of what kind it is. First by proof: if a transaction of a second
// client gets the connection that just answered the first, or the first is answered by
// another one meanwhile, or by none since all are in use, connections are not ours. A busy pool may
// not give that proof, so a notification decides, which arrives or does not; not where the pool
// greets as the server does.
func (d *dialer) examinePooler(ctx context.Context, first *pgx.Conn, greets bool) error {
	within, cancel := context.WithTimeout(ctx, poolPatience)
	defer cancel()
	second, err := d.dial(within, nil)
	if err != nil {
		return fullPool(ctx, within, greets, err)
	}
	defer (&pgxLink{conn: second}).close()
	for range 3 {
		ours, err := keepsConnections(within, plainly(first), plainly(second))
		if err != nil {
			return fullPool(ctx, within, greets, err)
		}
		if !ours {
			d.seen.pooler, d.seen.listens = transactionPooler, false
			return nil
		}
	}
	if greets {
		return nil // the server itself, as far as can be told
	}
	d.seen.pooler = sessionPooler
	d.seen.listens, err = arrives(ctx, first, plainly(second))
	if !d.seen.listens {
		d.seen.pooler = transactionPooler
	}
	return err
}

// hiddenPool looks for a pool that greets with the number of the server's process, and so was not
// seen. Where nothing can be told there is none.
func (d *dialer) hiddenPool(ctx context.Context) bool {
	first, err := d.dial(ctx, nil)
	if err != nil {
		return false
	}
	defer (&pgxLink{conn: first}).close()
	looked := dialer{cfg: d.cfg, before: d.before}
	return looked.examinePooler(ctx, first, true) == nil && looked.seen.pooler != ""
}

// keepsConnections reports whether two clients seem to have a connection of the server's each.
// After an answer that did not come, a is of no use.
func keepsConnections(ctx context.Context, a, b runner) (ours bool, err error) {
	pid := func(ctx context.Context, r runner) (n int64, err error) {
		err = one(ctx, r, ownPID, nil, &n)
		return n, err
	}
	before, err := pid(ctx, a)
	if err != nil {
		return false, err
	}
	err = b.atomically(ctx, func(tx runner) error {
		inside, err := pid(ctx, tx)
		if err != nil || inside == before {
			return err // a would wait until this transaction has ended, if the pool has no more
		}
		short, cancel := context.WithTimeout(ctx, poolSilence)
		defer cancel()
		after, err := pid(short, a)
		if err != nil && short.Err() != nil && ctx.Err() == nil {
			return nil
		}
		ours = after == before
		return err
	})
	return ours, err
}

// fullPool explains an answer to the examination that a pool did not give, or gave instead of the
// server.
func fullPool(ctx, within context.Context, greets bool, err error) error {
	switch {
	case greets:
	case sqlState(err) == protocolViolation && strings.Contains(err.Error(), "statement pooling"):
		return fmt.Errorf("%w: a pool in statement mode stands before the server, and allows no transaction: set its pool_mode to session or, for strategy=table, to transaction; or connect to the server itself: %w", driver.ErrInvalid, err)
	case within.Err() != nil && ctx.Err() == nil:
		return fmt.Errorf("a pool stands before the server (PgBouncer?) and had no second connection for us within %s: in session mode each client of hasp keeps one for its renewals, beside those of its requests; raise default_pool_size and max_db_connections, or connect to the server itself", poolPatience)
	}
	return err
}

// arrives tests whether a notification sent by one connection reaches another that
// listens. A second is long for it; a machine so busy that it takes longer has its waiters
// ask, which is slower and as safe.
func arrives(ctx context.Context, listener *pgx.Conn, sender runner) (bool, error) {
	channel := "hasp_p_" + strings.ToLower(rand.Text())
	r := plainly(listener)
	if err := r.script(ctx, "LISTEN "+channel); err != nil {
		return false, err
	}
	if err := sender.script(ctx, "NOTIFY "+channel); err != nil {
		return false, err
	}
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := listener.WaitForNotification(within)
	if err != nil && within.Err() == nil {
		return false, err
	}
	return err == nil, ctx.Err()
}

func refusePooler(strategy string) error {
	return fmt.Errorf("%w: strategy=%s needs separate connections, and a pool in between hands them out for the time of a transaction: the lock would be held by another client's connection; connect to the server itself, to a pool in session mode, or use strategy=table",
		driver.ErrInvalid, strategy)
}

var errNoCancel = errors.New("a request is not cancelled through a pooler")

// neverCancel has a connection that is made with these settings, behind a pooler, cancel nothing.
// pgx asks the server to cancel a statement whose caller has given up, over another connection; if
// that one ends before its answer, as it does when the program exits or the network goes, PgBouncer
// ends itself, and with it everybody's connections (its issue 801, seen with 1.18). The pooler ends
// the server's connection when ours goes away amid a statement. What we leave running there is
// short (a turn and a row's lock, which others hold for a statement), or is noticed by
// client_connection_check_interval.
//
// pgx has no setting for it, but dials for it as for the connection itself: after that, never.
func neverCancel(cfg *pgx.ConnConfig) {
	var made atomic.Bool
	dial, after := cfg.DialFunc, cfg.AfterConnect
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if made.Load() {
			return nil, errNoCancel
		}
		return dial(ctx, network, addr)
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		made.Store(true)
		if after == nil {
			return nil
		}
		return after(ctx, conn)
	}
}
