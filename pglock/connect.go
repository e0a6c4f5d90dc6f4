package pglock

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// link is a connection for one session or one lock.
type link interface {
	runner
	// wait returns nil after a notification arrived, which heard was told, and an error when
	// ctx ends or the connection does.
	wait(ctx context.Context, heard func(channel, payload string)) error
	// broken reports that the connection is of no use any more.
	broken() bool
	// close ends the connection, and with it all that the server keeps for it.
	close()
}

// linker makes links.
type linker interface {
	fmt.Stringer
	link(ctx context.Context) (link, error)
	listens() bool // notifications arrive
}

// dialer makes connections with pgx.
type dialer struct {
	cfg    *pgx.ConnConfig
	before func(context.Context, *pgx.ConnConfig) error // a pool's hook: fresh passwords, say
	own    bool                                         // made from a URL: their settings are ours to choose

	level level
	seen  examined
}

// examined has what Open found between us and the server.
type examined struct {
	pooler   string // "", or what stands before the server: a "session" or "transaction" pooler
	listens  bool
	database string
}

// String names the store by its first host; others are its alternatives.
func (d *dialer) String() string {
	host := d.cfg.Host
	if !strings.HasPrefix(host, "/") {
		host = net.JoinHostPort(host, strconv.Itoa(int(d.cfg.Port)))
	}
	return "postgres://" + host + "/" + d.seen.database
}

func (d *dialer) listens() bool { return d.seen.listens }

// login is equal for two dialers whose connections reach the same server in the same way: the URL,
// and what the environment adds to it. A pool of the user's equals only itself: functions are among
// its settings.
func (d *dialer) login() any {
	if !d.own {
		return d
	}
	type login struct {
		url, host, database, user, password string
		port                                uint16
	}
	return login{d.cfg.ConnString(), d.cfg.Host, d.cfg.Database, d.cfg.User, d.cfg.Password, d.cfg.Port}
}

// mode is how statements are sent. Prepared ones save the server most of its work, but
// belong to a server's connection, which a transaction pooler changes under us.
func (d *dialer) mode() pgx.QueryExecMode {
	if d.seen.pooler == transactionPooler {
		return pgx.QueryExecModeExec
	}
	return pgx.QueryExecModeCacheStatement
}

func (d *dialer) runner(on pgxQuerier) pgxRunner {
	return pgxRunner{on: on, mode: d.mode(), level: &d.level}
}

// dial makes a connection. noticed, if any, is called with the notices of the server, by
// the goroutine that reads from the connection.
func (d *dialer) dial(ctx context.Context, noticed func(text string)) (*pgx.Conn, error) {
	cfg := d.cfg.Copy()
	d.renewTLS(cfg)
	if d.before != nil {
		if err := d.before(ctx, cfg); err != nil {
			return nil, err
		}
	}
	if d.seen.pooler != "" {
		neverCancel(cfg)
	}
	if theirs := cfg.OnNotice; noticed != nil {
		cfg.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
			noticed(n.Message)
			if theirs != nil {
				theirs(c, n)
			}
		}
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		setKeepAlive(conn)
	}
	return conn, err
}

// renewTLS gives a connection what the files of certificates hold now: they are renewed while a
// program runs, and pgx reads them with the URL only. Files that cannot be read change nothing.
func (d *dialer) renewTLS(cfg *pgx.ConnConfig) {
	if !d.own || cfg.TLSConfig == nil {
		return
	}
	if now, err := pgx.ParseConfig(d.cfg.ConnString()); err == nil {
		cfg.TLSConfig, cfg.Fallbacks = now.TLSConfig, now.Fallbacks
	}
}

func (d *dialer) link(ctx context.Context) (l link, err error) {
	err = repeatMixedUp(func() error {
		l, err = d.linkOnce(ctx)
		return err
	})
	return l, err
}

func (d *dialer) linkOnce(ctx context.Context) (link, error) {
	l := &pgxLink{}
	conn, err := d.dial(ctx, l.noticed)
	if err != nil {
		return nil, err
	}
	l.pgxRunner, l.conn, l.pid = d.runner(conn), conn, conn.PgConn().PID()
	err = d.configure(ctx, conn)
	if err == nil && d.seen.pooler == sessionPooler { // which makes up a number
		err = one(ctx, l, ownPID, nil, &l.pid)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// settings are those of our connections. Requests are bounded by their contexts; an
// idle connection is not idle but listens or holds a lock; names mean what they mean in
// pg_catalog (schema/2.sql); the functions need READ COMMITTED; the notice of
// hasp_obtain must come; every statement of ours has one good plan, so that making five others
// first, as the server does to compare, is work for nothing, and on a connection that is used a
// few times most of the work; a policy that would hide rows must fail the statement; and the server
// must notice when we are gone, also while it has us wait for a lock
// (client_connection_check_interval), and while something that it has sent is not acknowledged: its
// kernel sends no probes then, but the same thing again, for a quarter of an hour
// (tcp_user_timeout).
//
// The path in force may still be anybody's: nothing here is looked up in it.
const settings = `SELECT pg_catalog.set_config(v.name, v.value, false) FROM (VALUES
	('search_path', 'pg_catalog, pg_temp'),
	('statement_timeout', '0'), ('lock_timeout', '0'), ('idle_session_timeout', '0'),
	('idle_in_transaction_session_timeout', '0'), ('transaction_timeout', '0'),
	('default_transaction_isolation', 'read committed'), ('client_min_messages', 'notice'),
	('plan_cache_mode', 'force_generic_plan'), ('row_security', 'off'),
	('tcp_keepalives_idle', '6'), ('tcp_keepalives_interval', '3'), ('tcp_keepalives_count', '3'),
	('tcp_user_timeout', '15s'), ('client_connection_check_interval', '5s')) v(name, value)
	WHERE pg_catalog.current_setting(v.name, true) IS NOT NULL`

// ownPID asks for the number of the server's process.
const ownPID = "SELECT pg_catalog.pg_backend_pid()::bigint"

// configure is skipped where a pooler would give our settings to another client.
func (d *dialer) configure(ctx context.Context, conn *pgx.Conn) error {
	if d.seen.pooler == transactionPooler {
		return nil
	}
	n := 0
	err := plainly(conn).each(ctx, settings, nil, anyNumber, func(scan func(...any) error) error {
		n++
		return scan(new(string))
	})
	if err == nil && n == 0 {
		err = errMixedUp
	}
	return err
}

// pgxLink is a link of pgx.
type pgxLink struct {
	pgxRunner
	conn *pgx.Conn
	pid  uint32 // of the server's process

	// Of an advisory lock's connection; only its present user reads and writes them.
	base, most int64    // the tokens that it may use (hasp_token)
	noted      []string // the names that it has been recorded to hold, or soon will be: see Recorder

	// taken is called when hasp_obtain says that it waits: while its statement is under way,
	// by the goroutine that reads the answer.
	taken func()
}

func (l *pgxLink) noticed(text string) {
	if l.taken != nil && text == "hasp: taken" {
		l.taken()
	}
}

func (l *pgxLink) wait(ctx context.Context, heard func(channel, payload string)) error {
	n, err := l.conn.WaitForNotification(ctx)
	if err == nil {
		heard(n.Channel, n.Payload)
	}
	return err
}

func (l *pgxLink) broken() bool { return l.conn.IsClosed() }

// close tells the server, which would otherwise take the end for a fault and write it into its
// log. It waits for no answer; the time is for a send buffer that is full.
func (l *pgxLink) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = l.conn.Close(ctx) // it is closed in any case
}

// dbDialer takes connections out of a *sql.DB.
type dbDialer struct {
	db       *sql.DB
	level    level
	database string
}

func (d *dbDialer) String() string { return "postgres database " + d.database + " by database/sql" }

func (d *dbDialer) listens() bool { return false }

func (d *dbDialer) examine(ctx context.Context) error {
	var replica bool
	var version string
	if err := one(ctx, sqlRunner{on: d.db}, "SELECT pg_catalog.current_database(), pg_catalog.pg_is_in_recovery(), pg_catalog.version()", nil, &d.database, &replica, &version); err != nil {
		return explain(ctx, err)
	}
	return refuseServer(replica, version)
}

func (d *dbDialer) link(ctx context.Context) (link, error) {
	conn, err := d.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &dbLink{sqlRunner: sqlRunner{conn, &d.level}, conn: conn}, nil
}

// dbLink is a link of database/sql.
type dbLink struct {
	sqlRunner
	conn   *sql.Conn
	failed bool
}

// each notes errors that are not the server's answer: what they leave of the connection
// only its driver knows, which looks at it when it is back in the pool.
func (l *dbLink) each(ctx context.Context, stmt string, args []any, rows int, one func(func(...any) error) error) error {
	err := l.sqlRunner.each(ctx, stmt, args, rows, one)
	if err != nil && sqlState(err) == "" {
		l.failed = true
	}
	return err
}

// wait hears nothing.
func (l *dbLink) wait(ctx context.Context, _ func(string, string)) error {
	<-ctx.Done()
	return ctx.Err()
}

func (l *dbLink) broken() bool { return l.failed }

func (l *dbLink) close() { _ = l.conn.Close() } // back to the pool: nothing depends on it

func refuseServer(replica bool, signs string) error {
	if replica {
		return fmt.Errorf("%w: the server is a replica, which grants nothing; name the primary, or several hosts with target_session_attrs=read-write", driver.ErrRefused) // it may be promoted at this moment
	}
	return doctor.Refuse(products, signs)
}

// silenceMost is how long a peer may send nothing before a connection of ours ends, on either side:
// Go's own keepalives take two minutes, and the kernel sends what is not acknowledged again and
// again for a quarter of an hour, without a probe. The locks of Advisory end with their
// connections, and a waiter's position; so the server's side is set as well (settings).
const silenceMost = 15 * time.Second

var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 6 * time.Second, Interval: 3 * time.Second, Count: 3}

// setKeepAlive sets our side of a connection, of a pool of the user's as well.
func setKeepAlive(conn *pgx.Conn) {
	c := conn.PgConn().Conn()
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return // a socket file, or a tunnel of the user's
	}
	_ = tcp.SetKeepAliveConfig(keepAlive) // what cannot be set takes longer, and that is all
	_ = limitUnacknowledged(tcp)
}
