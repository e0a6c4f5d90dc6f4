package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/doctor"
)

// Warnings has none: what may be wrong takes more than a request or two.
func (*store) Warnings(context.Context) ([]driver.Finding, error) { return nil, nil }

// Diagnose looks for what would weaken or break the promises of a lock.
func (s *store) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	x := &examination{store: s, ctx: ctx, variables: map[string]string{}, states: map[string]string{}}
	// One connection for all: two may lead to two servers, which is one of the questions.
	c, err := connOf(ctx, s.work.DB)
	if err != nil {
		return nil, explain(ctx, err)
	}
	defer c.Close()
	x.conn = c
	x.Else("store", fmt.Sprintf("%s, strategy %s", s, s.opts.Strategy))
	if err := x.read("SHOW GLOBAL VARIABLES", x.variables); err != nil {
		return x.Found, err
	}
	if err := x.read("SHOW GLOBAL STATUS", x.states); err != nil {
		return x.Found, err
	}
	x.version()
	x.proxy()
	x.settings()
	var us int64
	asked := time.Now()
	if err := row(ctx, c, "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))", &us); err == nil {
		x.Clock(time.UnixMicro(us), asked)
	}
	x.schema()
	return x.Found, ctx.Err()
}

// examination is of one server.
type examination struct {
	doctor.Report
	store             *store
	conn              *sql.Conn
	ctx               context.Context
	variables, states map[string]string
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
	var is [2]int
	_, _ = fmt.Sscanf(v, "%d.%d", &is[0], &is[1])
	x.When(is[0] < least[0] || is[0] == least[0] && is[1] < least[1], driver.Bad, "version",
		fmt.Sprintf("%s %s, older than %d.%d, which hasp is not made for", name, v, least[0], least[1]), "upgrade the server")
	x.Else("version", name+" "+v)
	x.Product(products, v+" aurora_version:"+x.variables["aurora_version"])
}

// products are recognised by VERSION(), and Aurora by a variable. getlock with fence=off, which has
// no procedures, is refused nowhere.
var products = []doctor.Product{
	doctor.Refused("TiDB", "-TiDB-", "it has no stored procedures"),
	doctor.Refused("Vitess (PlanetScale)", "Vitess", "its stored procedures return no results and end no transactions"),
	doctor.Untested("Aurora MySQL", "aurora_version:3", "one server writes, to storage in several zones"),
}

// proxy asks twice which connection this is. A proxy that spreads statements over
// connections loses GET_LOCK between two of them.
func (x *examination) proxy() {
	ids := map[int64]bool{}
	for range 5 {
		var id int64
		if err := row(x.ctx, x.conn, "SELECT CONNECTION_ID()", &id); err != nil {
			x.Add(driver.Warn, "proxy", fmt.Sprintf("the connection cannot be told: %v", err), "")
			return
		}
		ids[id] = true
	}
	if len(ids) > 1 {
		level, cure := driver.Warn, "connect to the server itself: waiters of the table look in pauses where a proxy moves the locks of GET_LOCK that wake them"
		if x.store.opts.Strategy != StrategyTable {
			level, cure = driver.Bad, "connect to the server itself, or use the strategy table"
		}
		x.Add(level, "proxy", "statements of one connection are executed on several: there is a proxy in between", cure)
	}
}

const (
	// shortSilence is a wait_timeout, in seconds, under which a pool's connections are forever made
	// anew.
	shortSilence = 60
	// longHistory is how many old versions of rows InnoDB may keep before looking at a busy queue
	// becomes slow.
	longHistory = 1_000_000
)

// settings looks at the server's variables.
func (x *examination) settings() {
	v, table := x.variables, x.store.opts.Strategy == StrategyTable
	replicas := max(x.number(x.states, "Slaves_connected"), x.number(x.states, "Replicas_connected"))
	semi := x.states["Rpl_semi_sync_master_status"] == "ON" || x.states["Rpl_semi_sync_source_status"] == "ON"
	galera := v["wsrep_on"] == "ON"
	binlog := v["log_bin"] == "ON"
	silence, probes := x.number(v, "wait_timeout"), x.number(v, "tcp_keepalive_time")
	most, used := x.number(v, "max_connections"), x.number(x.states, "Threads_connected")
	inUse := fmt.Sprintf("%d of %d connections are in use", used, most)
	history := x.number(x.states, "Innodb_history_list_length") // MariaDB; MySQL keeps it elsewhere
	limit, ends := x.statementTime()
	closed, cure := "", "raise it"
	if !table && !x.store.own {
		closed, cure = ", and with them the locks of a session that renews more rarely", "raise it, or choose a TTL of less than three times that"
	}
	x.When(v["read_only"] == "ON" || v["super_read_only"] == "ON", driver.Bad, "role", "the server is read-only, perhaps a replica", "connect to the primary")
	x.When(table && replicas > 0 && !semi, driver.Warn, "failover",
		fmt.Sprintf("%d replicas, asynchronous: one that is promoted may have missed the newest grants, and two may hold", replicas),
		"let the resource check tokens; semi-synchronous replication makes it rarer")
	x.When(!table, driver.Info, "failover", "locks are not replicated: after a promotion no client holds any, and holders learn it by their connections", "")
	x.When(galera && table, driver.Warn, "galera",
		"a Galera cluster: nodes that lock the same names at once undo each other's transactions, which are repeated; and waiters poll, since the nodes do not share GET_LOCK",
		"have all clients use one node")
	x.When(galera, driver.Bad, "galera", "a Galera cluster: its nodes do not share GET_LOCK, so two clients can hold", "use the strategy table")
	x.Else("isolation", cmp.Or(v["transaction_isolation"], v["tx_isolation"])+"; hasp's own transactions are READ-COMMITTED in any case")
	x.When(binlog && v["binlog_format"] == "STATEMENT", driver.Bad, "binlog",
		"binlog_format is STATEMENT, with which READ-COMMITTED transactions are refused", "set binlog_format to ROW or MIXED")
	x.When(binlog && v["sync_binlog"] != "1", driver.Warn, "sync_binlog", "it is "+v["sync_binlog"]+": replicas may miss commits after a crash", "set it to 1")
	x.When(v["innodb_flush_log_at_trx_commit"] != "1", driver.Warn, "durability", "innodb_flush_log_at_trx_commit is "+v["innodb_flush_log_at_trx_commit"]+
		": after a crash of the machine the last commits are forgotten, and a lock may be granted twice", "set it to 1")
	x.Else("durability", "every commit is written to disk")
	x.When(silence >= 0 && silence < shortSilence, driver.Warn, "wait_timeout",
		fmt.Sprintf("wait_timeout is %d s: idle connections are closed all the time%s", silence, closed), cure)
	x.When(ends > 0 && ends <= waitMost, driver.Warn, limit,
		fmt.Sprintf("the server ends each statement after %g s, and waiters wait in statements of up to %d s: they ask again, and those of getlock lose their places", ends, waitMost),
		"set it to 0, or to more, for hasp's role")
	x.When(!table && (probes <= 0 || probes > 120), driver.Warn, "keepalive",
		"the server finds a connection that was cut in silence only after the system's TCP keepalive, often two hours: its lock stays as long",
		"set tcp_keepalive_time (MariaDB), or net.ipv4.tcp_keepalive_time on the server's machine, to a minute")
	x.When(most > 0 && used*10 > most*8, driver.Warn, "connections", inUse, "raise max_connections, or lower what pools may open")
	x.Else("connections", inUse)
	x.When(history > longHistory, driver.Warn, "history",
		fmt.Sprintf("%d old versions of rows wait to be purged: some transaction has been open for long, and locking becomes slow", history),
		"find it in information_schema.innodb_trx and end it")
}

// statementTime is the limit, in seconds, that ends a statement which waits; 0: there is none.
// MariaDB's is a decimal fraction, and for every statement; MySQL's is in milliseconds and for
// SELECT, and getlock waits by a SELECT where it has no tokens.
func (x *examination) statementTime() (name string, seconds float64) {
	if ms := x.number(x.variables, "max_execution_time"); ms > 0 && x.store.opts.NoFence {
		return "max_execution_time", float64(ms) / 1000
	}
	seconds, _ = strconv.ParseFloat(x.variables["max_statement_time"], 64)
	return "max_statement_time", seconds
}

func (x *examination) schema() {
	if x.store.opts.NoFence {
		return
	}
	sc := x.store.schema
	v, err := sc.version(x.ctx, x.conn)
	x.When(err != nil, driver.Bad, "tables", fmt.Sprintf("cannot be read: %v", err), "grant SELECT, INSERT, UPDATE, DELETE and EXECUTE on the database")
	x.When(v == 0, driver.Warn, "tables", "there are none yet", "the first lock creates them; where the role may not, run `hasp migrate`")
	cure := "run `hasp migrate` of the newest hasp in use"
	if v < oldest {
		cure = anew
	}
	x.When(v != sc.latest(), driver.Warn, "tables", fmt.Sprintf("version %d, and this hasp is made for %d", v, sc.latest()), cure)
	if err != nil || v != sc.latest() {
		return
	}
	// Dropped indexes make two entries of one ID possible, or every look-up a scan.
	m, err := sc.lacks(x.ctx, x.conn)
	x.When(err != nil, driver.Warn, "tables", fmt.Sprintf("cannot be examined: %v", err), "")
	if m.some {
		x.Add(driver.Bad, "tables", strings.Join(m.tables, ", ")+" missing", anew)
	}
	if others := slices.Concat(m.procedures, m.indexes); len(others) > 0 {
		x.Add(driver.Bad, "tables", strings.Join(others, ", ")+" missing", "run `hasp migrate`, which makes them again")
	}
	err = each(x.ctx, x.conn, sc.named(`SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND ENGINE <> 'InnoDB'
		AND LOWER(TABLE_NAME) IN (LOWER('{p}names'), LOWER('{p}sessions'), LOWER('{p}entries'), LOWER('{p}bound'), LOWER('{p}store'), LOWER('{p}evictions'))`), func(r *sql.Rows) error {
		var table, engine string
		err := r.Scan(&table, &engine)
		x.When(err == nil, driver.Bad, "tables", table+" is kept by "+engine+", which has no transactions", "ALTER TABLE ... ENGINE=InnoDB")
		return err
	})
	x.When(err != nil, driver.Warn, "tables", fmt.Sprintf("cannot be examined: %v", err), "")
	x.Else("tables", fmt.Sprintf("%s*, version %d", sc.prefix, v))
}

var (
	_ driver.Diagnoser = (*table)(nil)
	_ driver.Diagnoser = (*bound)(nil)
)
