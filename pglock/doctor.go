package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Warnings has none: what may be wrong takes more than a request or two.
func (t *tables) Warnings(context.Context) ([]driver.Finding, error) { return nil, nil }

// Diagnose looks at the server, and at the way to it, for what would weaken or break the
// promises of a lock.
func (t *table) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{ctx: ctx, tables: t.tables}
	x.Else("store", t.String()+", strategy table")
	if d, ok := t.links.(*dialer); ok {
		x.route(d)
	} else {
		x.Add(driver.Info, "notifications", "none over database/sql: waiters ask", "use a URL, or pglock.Open with a pgx pool, to be told")
	}
	return x.examine()
}

// Diagnose is the same for the strategies that connections hold.
func (b *bound) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{ctx: ctx, tables: b.tables}
	x.Else("store", b.String()+", strategy "+string(b.opts.Strategy))
	x.route(b.dialer)
	return x.examine()
}

// examination is of one server.
type examination struct {
	doctor.Report
	*tables
	ctx   context.Context
	there int // version of the tables
}

// route reports what stands between us and the server.
func (x *examination) route(d *dialer) {
	const subject, cure = "pooler", "connect to the server itself or to a pool in session mode"
	x.When(d.seen.pooler == transactionPooler, driver.Warn, subject,
		"a pool hands connections out for the time of a transaction: no notification arrives, waiters ask every "+x.opts.Poll.String(), cure)
	x.When(d.seen.pooler == sessionPooler, driver.Info, subject, "a pool in session mode; each session keeps one of its connections, each lock of advisory one more", "")
	x.When(d.seen.pooler == "" && d.hiddenPool(x.ctx), driver.Bad, subject,
		"a pool hands connections out for the time of a transaction, and greets as the server does: waiters hear of no grant, and prepared statements fail", cure)
	x.Else(subject, "none")
	x.When(d.cfg.TLSConfig == nil && !strings.HasPrefix(d.cfg.Host, "/"), driver.Warn, "tls", "the connection is in plaintext", "sslmode=verify-full, unless the network is trusted")
}

func (x *examination) examine() ([]driver.Finding, error) {
	var err error
	x.there, err = x.naming.versionNow(x.ctx, x.pool)
	if err = explain(x.ctx, err); errors.Is(err, errRowSecurity) {
		x.Add(driver.Bad, "tables", "row level security hides them from this role", "their owner runs ALTER TABLE ... DISABLE ROW LEVEL SECURITY for each, or gives the role BYPASSRLS")
		return x.Found, nil
	} else if err != nil {
		return nil, err
	}
	missing, err := x.lackingNow()
	if err != nil {
		return nil, explain(x.ctx, err)
	}
	x.When(missing.some, driver.Bad, "tables", strings.Join(missing.tables, ", ")+" missing", anew)
	x.When(!missing.some && len(missing.others) > 0, driver.Bad, "tables", strings.Join(missing.others, ", ")+" missing", "run `hasp migrate`, which makes them again")
	for _, c := range x.checks() {
		if c.query == "" {
			continue
		}
		var bad bool
		var value string
		err := x.safely(x.ctx, func(r runner) error { return one(x.ctx, r, c.query, nil, &bad, &value) })
		switch {
		case err != nil:
			return x.Found, explain(x.ctx, err)
		case bad:
			x.Add(c.level, c.subject, strings.ReplaceAll(c.text, "%s", value), c.cure)
		case c.fine != "":
			x.Else(c.subject, strings.ReplaceAll(c.fine, "%s", value))
		}
	}
	asked, micros, signs := time.Now(), int64(0), ""
	err = x.safely(x.ctx, func(r runner) error {
		if err := one(x.ctx, r, productSigns, nil, &signs); err != nil {
			return err
		}
		asked = time.Now()
		return one(x.ctx, r, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", nil, &micros)
	})
	if err != nil {
		return x.Found, explain(x.ctx, err)
	}
	x.Product(products, signs)
	x.Clock(time.UnixMicro(micros), asked)
	return x.Found, nil
}

// lackingNow looks for what tables of the version that we need have lost.
func (x *examination) lackingNow() (m missing, err error) {
	if x.there == x.naming.latest() {
		m, err = x.naming.lacks(x.ctx, x.pool)
	}
	return m, err
}

// otherVersion is the cure for tables of one.
func (x *examination) otherVersion() string {
	if 0 < x.there && x.there < oldest {
		return anew
	}
	return "run `hasp migrate`; for a role without the right to create, the owner of the database runs `hasp migrate --grant ROLE`"
}

// check is a question to the server, which answers whether something is wrong, and with a value for
// the texts. query is "" where it has no meaning; fine "" where all is well without a word.
type check struct {
	subject, query string
	level          driver.Level
	text, cure     string // if it is wrong
	fine           string
}

// setting is a server's or a role's own, and not what our connection has asked for.
func setting(name, wrong string) string {
	return "SELECT v " + wrong + ", v FROM (SELECT coalesce(reset_val, '') AS v FROM pg_settings WHERE name = '" + name + "') s"
}

// checks are what can be asked of a server of this store.
func (x *examination) checks() []check {
	const crash = "off: a crash of the machine can lose or damage the locks"
	deadlock := "" // waiters of table wait for no lock of the server's
	if x.opts.Strategy == StrategyAdvisory {
		deadlock = fmt.Sprintf("SELECT setting::int <= %d, setting FROM pg_settings WHERE name = 'deadlock_timeout'", 2*x.opts.Slice.Milliseconds())
	}
	return []check{
		{"version", "SELECT current_setting('server_version_num')::int < 140000, current_setting('server_version')", driver.Bad,
			"PostgreSQL %s, older than 14, which hasp is not made for", "upgrade the server", "PostgreSQL %s"},
		{"role", "SELECT pg_is_in_recovery(), ''", driver.Bad, "this is a replica: it grants nothing", "connect to the primary", ""},
		{"role", setting("default_transaction_read_only", "= 'on'"), driver.Bad,
			"transactions are read-only: nothing can be acquired", "ALTER ROLE ... SET default_transaction_read_only = off", "primary"},
		{"failover", "SELECT count(*) > 0 AND current_setting('synchronous_standby_names') = '', count(*)::text FROM pg_stat_replication", driver.Warn,
			"%s replicas, and a commit waits for none: one that is promoted may have missed the newest grants, and two may hold",
			"set synchronous_standby_names, or let the resource check fencing tokens", ""},
		{"fsync", setting("fsync", "<> 'on'"), driver.Bad, crash, "set fsync = on", ""},
		{"full_page_writes", setting("full_page_writes", "<> 'on'"), driver.Bad, crash, "set full_page_writes = on", ""},
		{"synchronous_commit", setting("synchronous_commit", "= 'off'"), driver.Warn,
			"off; grants and renewals wait for the disk nevertheless, guarded data does not", "set synchronous_commit = on where the data needs it", "%s"},
		{"isolation", setting("default_transaction_isolation", "<> 'read committed'"), driver.Warn,
			"%s is the default; where hasp cannot set its own (a pool of yours, database/sql, a transaction pooler) each request takes three round trips",
			"ALTER ROLE ... SET default_transaction_isolation = 'read committed'", "%s"},
		{"encoding", setting("server_encoding", "<> 'UTF8'"), driver.Warn, "%s: names outside of it are refused", "use a database with UTF8", ""},
		{"deadlock_timeout", deadlock, driver.Warn,
			"%s ms, and a waiter may wait for twice a slice: CREATE INDEX CONCURRENTLY under a lock can be taken for a deadlock", "slice=, to less than half of it", ""},
		// Every client has two at least.
		{"connections", `SELECT used * 10 > most * 8, used || ' of ' || most || ' are in use' FROM (SELECT count(*) AS used,
			current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint AS most
			FROM pg_stat_activity WHERE backend_type = 'client backend') s`, driver.Warn, "%s", "raise max_connections, or share pools", "%s"},
		{"tables", fmt.Sprintf("SELECT %d <> %d, ''", x.there, x.naming.latest()), driver.Warn,
			fmt.Sprintf("version %d in schema %q, and %d is needed", x.there, x.opts.Schema, x.naming.latest()), x.otherVersion(), ""},
		// Without its indexes a queue has no order, and an ID two entries.
		{"tables", fmt.Sprintf(`SELECT %d > 0 AND count(*) < 6, count(*)::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE i.indisunique AND i.indisvalid AND n.nspname = '%s' AND c.relname IN ('%[3]snames', '%[3]ssessions', '%[3]sentries', '%[3]sholders')`, x.there, x.opts.Schema, x.opts.Prefix),
			driver.Bad, "%s of 6 unique indexes are there and valid", "drop hasp's tables while they are not in use, and run `hasp migrate`",
			fmt.Sprintf("version %d in schema %q", x.there, x.opts.Schema)},
		// It keeps rows from being vacuumed, of which every lock and release leaves one.
		{"vacuum", `SELECT coalesce(max(clock_timestamp() - xact_start) > interval '10 minutes', false),
			coalesce('process ' || (array_agg(pid ORDER BY xact_start))[1] || ' has a transaction open for ' || date_trunc('second', max(clock_timestamp() - xact_start)), '')
			FROM pg_stat_activity WHERE backend_xmin IS NOT NULL OR backend_xid IS NOT NULL`, driver.Warn,
			"%s: rows that locks leave behind pile up, and busy names become slow", "end it; set idle_in_transaction_session_timeout", "no old transaction keeps it from its work"},
	}
}

var (
	_ driver.Diagnoser = (*table)(nil)
	_ driver.Diagnoser = (*bound)(nil)
)
