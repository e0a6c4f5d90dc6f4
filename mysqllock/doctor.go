package mysqllock

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Diagnose looks for what would weaken or break the promises of a lock.
func (s *store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{store: s, ctx: ctx, variables: map[string]string{}, states: map[string]string{}}
	// One connection for all: two may lead to two servers, which is one of the questions.
	c, err := s.work.Conn(ctx)
	if err != nil {
		return nil, explain(ctx, err)
	}
	defer c.Close()
	x.conn = c
	x.add(driver.Info, "store", fmt.Sprintf("%s, strategy %s", s, s.opts.Strategy), "")
	if err := x.read("SHOW GLOBAL VARIABLES", x.variables); err != nil {
		return x.found, err
	}
	if err := x.read("SHOW GLOBAL STATUS", x.states); err != nil {
		return x.found, err
	}
	for _, look := range []func(){
		x.version, x.proxy, x.role, x.cluster, x.isolation, x.durability, x.timeouts, x.connections, x.clock, x.schema, x.history,
	} {
		look()
	}
	return x.found, ctx.Err()
}

// examination is of one server.
type examination struct {
	store             *store
	conn              *sql.Conn
	ctx               context.Context
	variables, states map[string]string
	found             []driver.Finding
}

func (x *examination) add(level driver.Level, subject, text, cure string) {
	x.found = append(x.found, driver.Finding{Level: level, Subject: subject, Text: text, Cure: cure})
}

func (x *examination) read(text string, into map[string]string) error {
	return each(x.ctx, x.conn, text, func(r *sql.Rows) error {
		var name, value string
		err := r.Scan(&name, &value)
		into[name] = value
		return err
	})
}

// number reads a variable; absent or not a number is -1.
func (x *examination) number(values map[string]string, name string) int {
	n, err := strconv.Atoi(values[name])
	if err != nil {
		return -1
	}
	return n
}

func (x *examination) version() {
	name, least := "MySQL", [2]int{8, 0}
	v := x.variables["version"]
	if strings.Contains(v, "MariaDB") {
		name, least = "MariaDB", [2]int{10, 6}
	}
	x.add(driver.Info, "version", name+" "+v, "")
	var is [2]int
	_, _ = fmt.Sscanf(v, "%d.%d", &is[0], &is[1])
	if is[0] < least[0] || is[0] == least[0] && is[1] < least[1] {
		x.add(driver.Bad, "version", fmt.Sprintf("older than %d.%d, which hasp is not made for", least[0], least[1]), "upgrade the server")
	}
}

// proxy asks twice which connection this is. A proxy that spreads statements over
// connections loses GET_LOCK between two of them.
func (x *examination) proxy() {
	ids := map[int64]bool{}
	for range 5 {
		var id int64
		if err := row(x.ctx, x.conn, "SELECT CONNECTION_ID()", &id); err != nil {
			x.add(driver.Warn, "proxy", fmt.Sprintf("the connection cannot be told: %v", err), "")
			return
		}
		ids[id] = true
	}
	if len(ids) > 1 {
		level, cure := driver.Warn, "connect to the server itself: waiters of the table look in pauses where a proxy moves the locks of GET_LOCK that wake them"
		if x.store.opts.Strategy != StrategyTable {
			level, cure = driver.Bad, "connect to the server itself, or use the strategy table"
		}
		x.add(level, "proxy", "statements of one connection are executed on several: there is a proxy in between", cure)
	}
}

func (x *examination) role() {
	if x.variables["read_only"] == "ON" || x.variables["super_read_only"] == "ON" {
		x.add(driver.Bad, "role", "the server is read-only, perhaps a replica", "connect to the primary")
	}
	replicas := max(x.number(x.states, "Slaves_connected"), x.number(x.states, "Replicas_connected"))
	semi := x.states["Rpl_semi_sync_master_status"] == "ON" || x.states["Rpl_semi_sync_source_status"] == "ON"
	switch {
	case x.store.opts.Strategy != StrategyTable:
		x.add(driver.Info, "failover", "locks are not replicated: after a promotion no client holds any, and holders learn it by their connections", "")
	case replicas > 0 && !semi:
		x.add(driver.Warn, "failover", fmt.Sprintf("%d replicas, asynchronous: one that is promoted may have missed the newest grants, and two may hold", replicas),
			"let the resource check tokens; semi-synchronous replication makes it rarer")
	}
}

func (x *examination) cluster() {
	if x.variables["wsrep_on"] != "ON" {
		return
	}
	if x.store.opts.Strategy == StrategyTable {
		x.add(driver.Warn, "galera", "a Galera cluster: nodes that lock the same names at once undo each other's transactions, which are repeated; and waiters poll, since the nodes do not share GET_LOCK",
			"have all clients use one node")
		return
	}
	x.add(driver.Bad, "galera", "a Galera cluster: neither GET_LOCK nor row locks are shared by its nodes, so two clients can hold", "use the strategy table")
}

func (x *examination) isolation() {
	level := x.variables["transaction_isolation"]
	if level == "" {
		level = x.variables["tx_isolation"]
	}
	x.add(driver.Info, "isolation", level+"; hasp's own transactions are READ-COMMITTED in any case", "")
	if x.variables["log_bin"] == "ON" && x.variables["binlog_format"] == "STATEMENT" {
		x.add(driver.Bad, "binlog", "binlog_format is STATEMENT, with which READ-COMMITTED transactions are refused", "set binlog_format to ROW or MIXED")
	}
}

func (x *examination) durability() {
	const forgets = "after a crash of the machine the last commits are forgotten, and a lock may be granted twice"
	if v := x.variables["innodb_flush_log_at_trx_commit"]; v != "1" {
		x.add(driver.Warn, "durability", "innodb_flush_log_at_trx_commit is "+v+": "+forgets, "set it to 1")
	} else {
		x.add(driver.Info, "durability", "every commit is written to disk", "")
	}
	if v := x.variables["sync_binlog"]; x.variables["log_bin"] == "ON" && v != "1" {
		x.add(driver.Warn, "durability", "sync_binlog is "+v+": replicas may miss commits after a crash", "set it to 1")
	}
}

// shortSilence is a wait_timeout under which a pool's connections are forever made anew.
const shortSilence = 60

func (x *examination) timeouts() {
	if n := x.number(x.variables, "wait_timeout"); n >= 0 && n < shortSilence {
		text := fmt.Sprintf("wait_timeout is %d s: idle connections are closed all the time", n)
		cure := "raise it"
		if x.store.opts.Strategy != StrategyTable && !x.store.own {
			text += ", and with them the locks of a session that renews more rarely"
			cure = "raise it, or choose a TTL of less than three times that"
		}
		x.add(driver.Warn, "wait_timeout", text, cure)
	}
	x.statementTime()
	if x.store.opts.Strategy == StrategyTable {
		return
	}
	if n := x.number(x.variables, "tcp_keepalive_time"); n > 0 && n <= 120 {
		x.add(driver.Info, "keepalive", fmt.Sprintf("a silent connection is examined after %d s", n), "")
	} else {
		x.add(driver.Warn, "keepalive", "the server finds a connection that was cut in silence only after the system's TCP keepalive, often two hours: its lock stays as long",
			"set tcp_keepalive_time (MariaDB), or net.ipv4.tcp_keepalive_time on the server's machine, to a minute")
	}
}

// statementTime looks for a limit that ends a statement which waits. MariaDB's is in seconds, as a decimal fraction, and for every
// statement; MySQL's is in milliseconds and for SELECT, and getlock waits by a SELECT where it has no tokens.
func (x *examination) statementTime() {
	name := "max_statement_time"
	seconds, _ := strconv.ParseFloat(x.variables[name], 64) // 0: there is no limit, or no such variable
	if ms := x.number(x.variables, "max_execution_time"); ms > 0 && x.store.opts.NoFence {
		name, seconds = "max_execution_time", float64(ms)/1000
	}
	if seconds > 0 && seconds <= waitMost {
		x.add(driver.Warn, name, fmt.Sprintf("the server ends each statement after %g s, and waiters wait in statements of up to %d s: they ask again, and those of getlock lose their places", seconds, waitMost),
			"set it to 0, or to more, for hasp's role")
	}
}

func (x *examination) connections() {
	most, used := x.number(x.variables, "max_connections"), x.number(x.states, "Threads_connected")
	text := fmt.Sprintf("%d of %d connections are in use", used, most)
	switch {
	case most > 0 && used*10 > most*8:
		x.add(driver.Warn, "connections", text, "raise max_connections, or lower what pools may open")
	default:
		x.add(driver.Info, "connections", text, "")
	}
}

// clockTolerance is how far the server's clock may be off before it is a finding.
// Exclusion does not depend on it, only on its rate; tokens after a restore do.
const clockTolerance = 5 * time.Second

func (x *examination) clock() {
	before := time.Now()
	var us int64
	if err := row(x.ctx, x.conn, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", &us); err != nil {
		return
	}
	off := time.UnixMicro(us).Sub(before.Add(time.Since(before) / 2)).Round(time.Millisecond)
	if off.Abs() > clockTolerance {
		x.add(driver.Warn, "clock", fmt.Sprintf("the server's clock differs from ours by %s", off), "run NTP on both; never step the clock of a server that holds locks")
		return
	}
	x.add(driver.Info, "clock", fmt.Sprintf("differs from ours by %s", off), "")
}

func (x *examination) schema() {
	if x.store.opts.NoFence {
		return
	}
	sc := x.store.schema
	v, err := sc.version(x.ctx, x.conn)
	switch {
	case err != nil:
		x.add(driver.Bad, "tables", fmt.Sprintf("cannot be read: %v", err), "grant SELECT, INSERT, UPDATE, DELETE and EXECUTE on the database")
		return
	case v == 0:
		x.add(driver.Warn, "tables", "there are none yet", "the first lock creates them; where the role may not, run `hasp migrate`")
		return
	case v != len(sc.steps):
		x.add(driver.Warn, "tables", fmt.Sprintf("version %d, and this hasp is made for %d", v, len(sc.steps)), "run `hasp migrate` of the newest hasp in use")
		return
	}
	x.add(driver.Info, "tables", fmt.Sprintf("%s*, version %d", sc.prefix, v), "")
	// Dropped indexes make two entries of one ID possible, or every look-up a scan.
	for table, want := range map[string]int{"names": 2, "sessions": 2, "entries": 3, "bound": 2, "store": 1, "evictions": 1} {
		var engine sql.NullString
		var indexes int
		err := row(x.ctx, x.conn, statement(`SELECT (SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = CONVERT(? USING utf8mb4)),
			(SELECT COUNT(DISTINCT INDEX_NAME) FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = CONVERT(? USING utf8mb4))`,
			sc.prefix+table, sc.prefix+table), &engine, &indexes)
		switch {
		case err != nil:
			x.add(driver.Warn, "tables", fmt.Sprintf("%s%s cannot be examined: %v", sc.prefix, table, err), "")
		case !engine.Valid:
			x.add(driver.Bad, "tables", sc.prefix+table+" is missing", "run `hasp migrate --print` and apply it")
		case engine.String != "InnoDB":
			x.add(driver.Bad, "tables", sc.prefix+table+" is kept by "+engine.String+", which has no transactions", "ALTER TABLE ... ENGINE=InnoDB")
		case indexes < want:
			x.add(driver.Bad, "tables", fmt.Sprintf("%s%s has %d of %d indexes", sc.prefix, table, indexes, want), "restore them as `hasp migrate --print` shows")
		}
	}
}

// longHistory is how many old versions of rows InnoDB may keep before looking at a busy
// queue becomes slow.
const longHistory = 1_000_000

func (x *examination) history() {
	n := x.number(x.states, "Innodb_history_list_length") // MariaDB; MySQL keeps it elsewhere
	if n > longHistory {
		x.add(driver.Warn, "history", fmt.Sprintf("%d old versions of rows wait to be purged: some transaction has been open for long, and locking becomes slow", n),
			"find it in information_schema.innodb_trx and end it")
	}
}

var (
	_ driver.Diagnoser = (*table)(nil)
	_ driver.Diagnoser = (*bound)(nil)
)
