package mysqllock_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
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
	sqlkit.Exec(t, db, "ALTER TABLE locks.hasp_entries DROP INDEX id")
	sqlkit.Exec(t, db, "DROP TABLE locks.hasp_evictions")
	sqlkit.Exec(t, db, "SET GLOBAL read_only = 1")
	all := findings(t, sqlkit.With(base, "strategy=getlock"))
	for _, f := range []driver.Finding{
		{Level: driver.Warn, Subject: "durability", Text: "is 2"},
		{Level: driver.Warn, Subject: "wait_timeout", Text: "is 30 s"},
		{Level: driver.Bad, Subject: "binlog", Text: "STATEMENT"},
		{Level: driver.Warn, Subject: "max_statement_time", Text: "after 7.5 s"},
		{Level: driver.Warn, Subject: "keepalive", Text: "TCP keepalive"},
		{Level: driver.Bad, Subject: "tables", Text: "id of hasp_entries missing"},
		{Level: driver.Bad, Subject: "tables", Text: "hasp_evictions missing"},
		{Level: driver.Bad, Subject: "role", Text: "read-only"},
	} {
		if !told(all, f.Level, f.Subject, f.Text) {
			t.Errorf("not told: %+v; among %+v", f, all)
		}
	}
}
