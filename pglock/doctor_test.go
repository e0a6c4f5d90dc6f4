package pglock_test

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testtier"
)

// findings are those of a store by subject; of several with one subject, the worst.
func findings(t *testing.T, storeURL string) map[string]driver.Finding {
	t.Helper()
	b := open(t, storeURL)
	defer b.Close()
	list, err := b.(driver.Diagnoser).Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rank := map[driver.Level]int{driver.Info: 1, driver.Warn: 2, driver.Bad: 3}
	m := map[string]driver.Finding{}
	for _, f := range list {
		if rank[f.Level] > rank[m[f.Subject].Level] {
			m[f.Subject] = f
		}
		if f.Level != driver.Info && f.Cure == "" {
			t.Errorf("%s: a fault without a cure: %s", f.Subject, f.Text)
		}
	}
	return m
}

func wantFinding(t *testing.T, m map[string]driver.Finding, subject string, level driver.Level, text string) {
	t.Helper()
	if f := m[subject]; f.Level != level || !strings.Contains(f.Text, text) {
		t.Errorf("%s: %s %q; want %s with %q", subject, f.Level, f.Text, level, text)
	}
}

// A healthy server has nothing worse than the plaintext connection of this test.
func TestDoctorHealthy(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"table", "advisory", "row"} {
		storeURL := storeURL(t, "strategy="+strategy)
		release(t, lock(t, client(t, storeURL), "doctor"))
		m := findings(t, storeURL)
		for subject, f := range m {
			if f.Level != driver.Info && subject != "tls" && subject != "vacuum" && subject != "connections" {
				t.Errorf("%s: %s %s", subject, f.Level, f.Text)
			}
		}
		wantFinding(t, m, "store", driver.Info, strategy)
		wantFinding(t, m, "tls", driver.Warn, "plaintext")
	}
}

func TestDoctorFindings(t *testing.T) {
	t.Parallel()
	server := private(t, "max_connections = 12", "fsync = off", "synchronous_commit = off", "default_transaction_isolation = 'serializable'")
	wantFinding(t, findings(t, server.URL()), "tables", driver.Warn, "version 0")
	release(t, lock(t, client(t, server.URL()), "doctor"))
	do(t, server.URL(), "ALTER TABLE hasp_entries DROP CONSTRAINT hasp_entries_session_id_key")
	for range 6 { // beside those of the client and of the doctor
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
	}
	m := findings(t, server.URL())
	wantFinding(t, m, "fsync", driver.Bad, "off")
	wantFinding(t, m, "synchronous_commit", driver.Warn, "off")
	wantFinding(t, m, "isolation", driver.Warn, "serializable")
	wantFinding(t, m, "tables", driver.Bad, "6 of 7")
	wantFinding(t, m, "connections", driver.Warn, "of 9")
}

func TestDoctorPooler(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := backends.SharedPostgres(t)
	wantFinding(t, findings(t, backends.StartPgBouncer(t, server, "transaction").URL()), "pooler", driver.Warn, "waiters ask")
	wantFinding(t, findings(t, backends.StartPgBouncer(t, server, "session").URL()), "pooler", driver.Info, "session mode")
	wantFinding(t, findings(t, server.URL()), "pooler", driver.Info, "none")
}

// A role whose transactions are read-only acquires nothing.
func TestDoctorReadOnly(t *testing.T) {
	t.Parallel()
	server := private(t)
	do(t, server.URL(), "CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on")
	wantFinding(t, findings(t, as(server.URL(), "reader")), "role", driver.Bad, "read-only")
}
