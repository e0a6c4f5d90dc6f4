package mysqllock_test

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/mysqllock"
)

func findings(t *testing.T, storeURL string) []driver.Finding {
	t.Helper()
	b := testkit.Open(t, storeURL)
	defer b.Close()
	all, err := b.(driver.Diagnoser).Diagnose(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// told reports whether a finding of a subject has this level and says this.
func told(all []driver.Finding, level driver.Level, subject, text string) bool {
	return slices.ContainsFunc(all, func(f driver.Finding) bool {
		return f.Subject == subject && f.Level == level && strings.Contains(f.Text, text) && (level == driver.Info || f.Cure != "")
	})
}

// A server with the defaults has nothing that breaks a promise.
func TestDoctorHealthy(t *testing.T) {
	t.Parallel()
	base := serverURL(t)
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	all := findings(t, base)
	for _, f := range all {
		if f.Level == driver.Bad {
			t.Errorf("%+v", f)
		}
	}
	for _, subject := range []string{"store", "version", "isolation", "durability", "connections", "clock", "tables"} {
		if !told(all, driver.Info, subject, "") {
			t.Errorf("nothing about %s in %+v", subject, all)
		}
	}
}

// Each setting that weakens a promise is told, with what to do.
func TestDoctorFinds(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
		"innodb_flush_log_at_trx_commit=2", "wait_timeout=30", "max_connections=10", "log-bin=b", "binlog_format=STATEMENT", "max_statement_time=7.5"}})
	base := sqlkit.MariaDBStore(t, m)
	db := sqlkit.MariaDBAdmin(t, m)
	sqlkit.Exec(t, db, "SET GLOBAL binlog_format = ROW")
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	sqlkit.Exec(t, db, "SET GLOBAL binlog_format = STATEMENT")
	sqlkit.Exec(t, db, "ALTER TABLE locks.hasp_entries DROP INDEX name")
	sqlkit.Exec(t, db, "DROP TABLE locks.hasp_evictions")
	sqlkit.Exec(t, db, "SET GLOBAL read_only = 1")
	all := findings(t, sqlkit.With(base, "strategy=getlock"))
	for _, f := range []driver.Finding{
		{Level: driver.Warn, Subject: "durability", Text: "is 2"},
		{Level: driver.Warn, Subject: "wait_timeout", Text: "is 30 s"},
		{Level: driver.Bad, Subject: "binlog", Text: "STATEMENT"},
		{Level: driver.Warn, Subject: "max_statement_time", Text: "after 7.5 s"},
		{Level: driver.Warn, Subject: "keepalive", Text: "TCP keepalive"},
		{Level: driver.Bad, Subject: "tables", Text: "hasp_entries has 2 of 3 indexes"},
		{Level: driver.Bad, Subject: "tables", Text: "hasp_evictions is missing"},
		{Level: driver.Bad, Subject: "role", Text: "read-only"},
	} {
		if !told(all, f.Level, f.Subject, f.Text) {
			t.Errorf("not told: %+v; among %+v", f, all)
		}
	}
}

// A node of a Galera cluster: GET_LOCK is refused there, and the doctor says why. The control
// is a server that is no node.
func TestGalera(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	const provider = "/usr/lib/galera/libgalera_smm.so"
	if _, err := os.Stat(provider); err != nil {
		t.Skipf("no Galera on this machine (%v)", err)
	}
	m := backends.StartMariaDB(t, backends.MariaDBOptions{Config: []string{
		"wsrep_on=ON", "wsrep_provider=" + provider, "wsrep_cluster_address=gcomm://", "binlog_format=ROW",
		"innodb_autoinc_lock_mode=2", "wsrep_provider_options=gmcast.listen_addr=tcp://127.0.0.1:0", "wsrep_node_address=127.0.0.1"}})
	ready := sqlkit.MariaDBAdmin(t, m)
	testkit.Eventually(t, "the node is a cluster", func() bool {
		var value string
		err := ready.QueryRow("SHOW GLOBAL STATUS LIKE 'wsrep_ready'").Scan(new(string), &value)
		return err == nil && value == "ON"
	})
	base := sqlkit.MariaDBStore(t, m)
	testkit.Release(t, testkit.Lock(t, client(t, base), "a"))
	if !told(findings(t, base), driver.Warn, "galera", "undo each other") {
		t.Error("the doctor does not warn of Galera")
	}
	if !told(findings(t, sqlkit.With(base, "strategy="+string(mysqllock.StrategyGetLock))), driver.Bad, "galera", "two clients can hold") {
		t.Error("the doctor does not warn of GET_LOCK on Galera")
	}
	if _, err := client(t, sqlkit.With(base, "strategy="+string(mysqllock.StrategyGetLock))).Mutex("a").Lock(ctx(t)); !errors.Is(err, driver.ErrUnsupported) {
		t.Errorf("GET_LOCK on Galera: %v", err)
	}
	alone := sqlkit.With(sqlkit.MariaDBStore(t, backends.SharedMariaDB(t)), "strategy="+string(mysqllock.StrategyGetLock))
	testkit.Release(t, testkit.Lock(t, client(t, alone), "galera"))
	if told(findings(t, alone), driver.Bad, "galera", "") {
		t.Error("the doctor takes every server for a node")
	}
}
