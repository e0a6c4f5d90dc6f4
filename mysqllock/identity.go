package mysqllock

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// Identity names the tables by the number that was drawn when they were made. That stays over
// a failover, and comes first, so that the order in which several stores are locked stays too.
//
// A database that was made from another's dump has that number as well. So what else tells two
// apart follows: the database, the prefix, and the server, or the cluster that it is a node of.
// Two identities for one store would have LockAll wait for itself; one identity for two stores
// would have it leave one unlocked. The first is the lesser evil.
func (t *table) Identity(ctx context.Context) (string, error) {
	if err := t.fit(ctx); err != nil {
		return "", err
	}
	w, err := t.location(ctx, true)
	if err != nil {
		return "", err
	}
	var id string
	if err := row(ctx, t.work, t.named("SELECT id FROM {p}store"), &id); err != nil {
		return "", err
	}
	if w.folded {
		w.database = strings.ToLower(w.database)
	}
	return "mysql " + string(StrategyTable) + " " + id + " " + digest(w.server, w.database, t.opts.Prefix), nil
}

// Identity of locks that are the server's own. GET_LOCK knows no tables, and perhaps there are none: it is the server's. What separates two
// databases, or two prefixes, are the names that we give the locks, and with names=plain nothing.
func (b *bound) Identity(ctx context.Context) (string, error) {
	if err := b.fit(ctx); err != nil {
		return "", err
	}
	w, err := b.location(ctx, false)
	if err != nil {
		return "", err
	}
	if b.opts.PlainNames {
		return "mysql " + string(StrategyGetLock) + " plain " + digest(w.server), nil
	}
	// As it is in the locks' names: there the case counts even where a database has none.
	return "mysql " + string(StrategyGetLock) + " " + digest(w.server) + " " + digest(w.database, b.opts.Prefix), nil
}

// location is where a store is, as the store says.
type location struct {
	server, database string
	folded           bool // the case of a database's name does not count
}

// location asks what every user may. MySQL draws a number for each server. MariaDB computes one,
// of the network card and the port, which are alike in many a container; the host's name and
// the directory help. The nodes of a cluster share one number, if that is wanted.
func (s *store) location(ctx context.Context, shared bool) (w location, err error) {
	v := map[string]string{}
	read := func(text string) error {
		return each(ctx, s.work, text, func(r *sql.Rows) error {
			var name, value string
			err := r.Scan(&name, &value)
			v[strings.ToLower(name)] = value
			return err
		})
	}
	if err := row(ctx, s.work, "SELECT DATABASE()", &w.database); err != nil {
		return w, err
	}
	if err := read(`SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_uid', 'hostname', 'port', 'datadir',
		'lower_case_table_names', 'wsrep_on', 'group_replication_group_name')`); err != nil {
		return w, err
	}
	w.folded = v["lower_case_table_names"] != "0"
	if shared && v["wsrep_on"] == "ON" {
		if err := read("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_state_uuid'"); err != nil {
			return w, err
		}
	}
	switch {
	case v["wsrep_cluster_state_uuid"] != "":
		w.server = v["wsrep_cluster_state_uuid"]
	case shared && v["group_replication_group_name"] != "":
		w.server = v["group_replication_group_name"]
	case v["server_uuid"] != "":
		w.server = v["server_uuid"]
	default:
		w.server = strings.Join([]string{v["server_uid"], v["hostname"], v["port"], v["datadir"]}, "\x00")
	}
	return w, nil
}

// digest is short, and shows nothing of what it was made of.
func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

var (
	_ driver.Identifier = (*table)(nil)
	_ driver.Identifier = (*bound)(nil)
)
