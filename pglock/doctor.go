package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Diagnose looks at the server, and at the way to it, for what would weaken or break the
// promises of a lock.
func (t *table) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{ctx: ctx, tables: t.tables}
	x.add(driver.Info, "store", t.String()+", strategy table", "")
	if d, ok := t.links.(*dialer); ok {
		x.route(d)
	} else {
		x.add(driver.Info, "notifications", "none over database/sql: waiters ask", "use a URL, or pglock.Open with a pgx pool, to be told")
	}
	return x.examine()
}

// Diagnose is the same for the strategies that connections hold.
func (b *bound) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{ctx: ctx, tables: b.tables}
	x.add(driver.Info, "store", b.String()+", strategy "+string(b.opts.Strategy), "")
	x.route(b.dialer)
	return x.examine()
}

// examination is of one server.
type examination struct {
	*tables
	ctx   context.Context
	r     runner // of the moment
	there int    // version of the tables
	found []driver.Finding
}

func (x *examination) add(level driver.Level, subject, text, cure string) {
	x.found = append(x.found, driver.Finding{Level: level, Subject: subject, Text: text, Cure: cure})
}

// route reports what stands between us and the server.
func (x *examination) route(d *dialer) {
	switch {
	case d.seen.pooler == transactionPooler:
		x.add(driver.Warn, "pooler", "a pool hands connections out for the time of a transaction: no notification arrives, waiters ask every "+x.opts.Poll.String(),
			"connect to the server itself or to a pool in session mode")
	case d.seen.pooler == sessionPooler:
		x.add(driver.Info, "pooler", "a pool in session mode; each session keeps one of its connections, each lock of advisory one more", "")
	case d.hiddenPool(x.ctx):
		x.add(driver.Bad, "pooler", "a pool hands connections out for the time of a transaction, and greets as the server does: waiters hear of no grant, and prepared statements fail",
			"connect to the server itself or to a pool in session mode")
	default:
		x.add(driver.Info, "pooler", "none", "")
	}
	if d.cfg.TLSConfig == nil && !strings.HasPrefix(d.cfg.Host, "/") {
		x.add(driver.Warn, "tls", "the connection is in plaintext", "sslmode=verify-full, unless the network is trusted")
	}
}

func (x *examination) examine() ([]driver.Finding, error) {
	var err error
	x.there, err = x.naming.versionNow(x.ctx, x.pool)
	if err = explain(x.ctx, err); errors.Is(err, errRowSecurity) {
		x.add(driver.Bad, "tables", "row level security hides them from this role", "their owner runs ALTER TABLE ... DISABLE ROW LEVEL SECURITY for each, or gives the role BYPASSRLS")
		return x.found, nil
	} else if err != nil {
		return nil, err
	}
	for _, look := range []func() error{x.version, x.settings, x.headroom, x.clock, x.schema, x.oldTransactions} {
		err := x.safely(x.ctx, func(r runner) error {
			x.r = r
			return look()
		})
		if err != nil {
			return x.found, explain(x.ctx, err)
		}
	}
	return x.found, nil
}

func (x *examination) version() error {
	var number int64
	var text string
	err := one(x.ctx, x.r, "SELECT current_setting('server_version_num')::bigint, current_setting('server_version')", nil, &number, &text)
	if err != nil {
		return err
	}
	x.add(driver.Info, "version", "PostgreSQL "+text, "")
	if number < 140000 {
		x.add(driver.Bad, "version", "older than 14, which hasp is not made for", "upgrade the server")
	}
	return nil
}

// settings are read on a connection that asks for nothing, so that they are the server's
// and the role's own.
func (x *examination) settings() error {
	s := map[string]string{}
	err := x.r.each(x.ctx, `SELECT name, coalesce(reset_val, '') FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync',
			'full_page_writes', 'default_transaction_isolation', 'default_transaction_read_only', 'server_encoding', 'synchronous_standby_names')
		UNION ALL SELECT 'in_recovery', pg_is_in_recovery()::text
		UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication`, nil, anyNumber, func(scan func(...any) error) error {
		var name, value string
		err := scan(&name, &value)
		s[name] = value
		return err
	})
	if err != nil {
		return err
	}
	x.role(s)
	for _, name := range []string{"fsync", "full_page_writes"} {
		if s[name] != "on" {
			x.add(driver.Bad, name, "off: a crash of the machine can lose or damage the locks", "set "+name+" = on")
		}
	}
	if s["synchronous_commit"] == "off" {
		x.add(driver.Warn, "synchronous_commit", "off; grants and renewals wait for the disk nevertheless, guarded data does not", "set synchronous_commit = on where the data needs it")
	} else {
		x.add(driver.Info, "synchronous_commit", s["synchronous_commit"], "")
	}
	if level := s["default_transaction_isolation"]; level != "read committed" {
		x.add(driver.Warn, "isolation", level+" is the default; where hasp cannot set its own (a pool of yours, database/sql, a transaction pooler) each request takes three round trips",
			"ALTER ROLE ... SET default_transaction_isolation = 'read committed'")
	} else {
		x.add(driver.Info, "isolation", level, "")
	}
	if s["server_encoding"] != "UTF8" {
		x.add(driver.Warn, "encoding", s["server_encoding"]+": names outside of it are refused", "use a database with UTF8")
	}
	return nil
}

func (x *examination) role(s map[string]string) {
	switch {
	case s["in_recovery"] == "true":
		x.add(driver.Bad, "role", "this is a replica: it grants nothing", "connect to the primary")
	case s["default_transaction_read_only"] == "on":
		x.add(driver.Bad, "role", "transactions are read-only: nothing can be acquired", "ALTER ROLE ... SET default_transaction_read_only = off")
	case s["standbys"] != "0" && s["synchronous_standby_names"] == "":
		x.add(driver.Warn, "failover", s["standbys"]+" replicas, and a commit waits for none: one that is promoted may have missed the newest grants, and two may hold",
			"set synchronous_standby_names, or let the resource check fencing tokens")
	default:
		x.add(driver.Info, "role", "primary", "")
	}
}

// headroom counts connections, of which every client has two at least.
func (x *examination) headroom() error {
	var used, most int64
	err := one(x.ctx, x.r, `SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
		current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint`, nil, &used, &most)
	if err != nil {
		return err
	}
	level, cure := driver.Info, ""
	if used*10 > most*8 {
		level, cure = driver.Warn, "raise max_connections, or share pools"
	}
	x.add(level, "connections", fmt.Sprintf("%d of %d are in use", used, most), cure)
	return nil
}

// clockTolerance is how far the server's clock may be off before it is a finding.
// Exclusion does not depend on it, only on its rate; tokens after a loss of data do.
const clockTolerance = 5 * time.Second

func (x *examination) clock() error {
	before := time.Now()
	var micros int64
	err := one(x.ctx, x.r, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", nil, &micros)
	if err != nil {
		return err
	}
	off := time.UnixMicro(micros).Sub(before.Add(time.Since(before) / 2)).Round(time.Millisecond)
	if off.Abs() > clockTolerance {
		x.add(driver.Warn, "clock", fmt.Sprintf("the server's clock differs from ours by %s", off), "run NTP on both; never step the clock of a server that holds locks")
	} else {
		x.add(driver.Info, "clock", fmt.Sprintf("differs from ours by %s", off), "")
	}
	return nil
}

// schema looks for the tables, and for the indexes without which a queue has no order and
// an ID two entries.
func (x *examination) schema() error {
	if x.there != x.naming.latest() {
		x.add(driver.Warn, "tables", fmt.Sprintf("version %d in schema %q, and %d is needed", x.there, x.opts.Schema, x.naming.latest()), "run `hasp migrate`; without the right to create, `hasp migrate --print`")
		return nil
	}
	p := x.opts.Prefix
	var keys int64
	err := one(x.ctx, x.r, `SELECT count(*) FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE i.indisunique AND i.indisvalid AND n.nspname = $1 AND c.relname IN ($2, $3, $4, $5)`,
		[]any{x.opts.Schema, p + "names", p + "sessions", p + "entries", p + "holders"}, &keys)
	if err != nil {
		return err
	}
	if keys < 6 {
		x.add(driver.Bad, "tables", fmt.Sprintf("%d of 6 unique indexes are there and valid", keys), "drop hasp's tables while they are not in use, and run `hasp migrate`")
		return nil
	}
	x.add(driver.Info, "tables", fmt.Sprintf("version %d in schema %q", x.there, x.opts.Schema), "")
	return nil
}

// oldTransaction is how long one may be open before the rows it keeps from being vacuumed
// are worth a word: every lock and release leaves one.
const oldTransaction = 10 * time.Minute

func (x *examination) oldTransactions() error {
	var seconds, pid int64
	err := one(x.ctx, x.r, `SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start))::bigint, 0),
			coalesce((array_agg(pid ORDER BY xact_start))[1], 0)::bigint
		FROM pg_stat_activity WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL`, nil, &seconds, &pid)
	if err != nil {
		return err
	}
	age := time.Duration(seconds) * time.Second
	if age > oldTransaction {
		x.add(driver.Warn, "vacuum", fmt.Sprintf("process %d has a transaction open for %s: rows that locks leave behind pile up, and busy names become slow", pid, age),
			"end it; set idle_in_transaction_session_timeout")
	} else {
		x.add(driver.Info, "vacuum", "no old transaction keeps it from its work", "")
	}
	return nil
}

var (
	_ driver.Diagnoser = (*table)(nil)
	_ driver.Diagnoser = (*bound)(nil)
)
