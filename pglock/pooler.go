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
	if err := one(ctx, r, "SELECT pg_catalog.pg_backend_pid()::bigint, pg_catalog.pg_is_in_recovery(), pg_catalog.current_database()", nil, &pid, &replica, &d.seen.database); err != nil {
		return err
	}
	if err := refuseReplica(replica); err != nil {
		return err
	}
	d.seen.listens = true
	if uint32(pid) != conn.PgConn().PID() {
		// The process that greeted us is not the one that answers.
		if err := d.examinePooler(ctx, conn); err != nil {
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

// examinePooler finds out of what kind it is. First by proof: if a transaction of a second
// client gets the connection that just answered the first, or the first is answered by
// another one meanwhile, connections are not ours. A busy pool may not give that proof, so
// a notification decides, which arrives or does not.
func (d *dialer) examinePooler(ctx context.Context, first *pgx.Conn) error {
	second, err := d.dial(ctx, nil)
	if err != nil {
		return err
	}
	defer (&pgxLink{conn: second}).close()
	a, b := plainly(first), plainly(second)
	pid := func(r runner) (n int64, err error) {
		err = one(ctx, r, ownPID, nil, &n)
		return n, err
	}
	d.seen.pooler = sessionPooler
	for range 3 {
		before, err := pid(a)
		if err != nil {
			return err
		}
		var inside, after int64
		err = b.atomically(ctx, func(tx runner) (err error) {
			if inside, err = pid(tx); err == nil {
				after, err = pid(a)
			}
			return err
		})
		if err != nil {
			return err
		}
		if inside == before || after != before {
			d.seen.pooler, d.seen.listens = transactionPooler, false
			return nil
		}
	}
	d.seen.listens, err = arrives(ctx, first, b)
	if !d.seen.listens {
		d.seen.pooler = transactionPooler
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

// neverCancel has a connection that is made with these settings, behind a pooler, cancel nothing. pgx
// asks the server to cancel a statement whose caller has given up, over another connection;
// if that one ends before its answer, as it does when the program exits or the network goes,
// PgBouncer ends itself, and with it everybody's connections (its issue 801, seen with 1.18).
// The pooler ends the server's connection when ours goes away amid a statement. What we leave
// running there is short (a turn and a row's lock, which others hold for a statement), or is
// noticed by client_connection_check_interval.
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
