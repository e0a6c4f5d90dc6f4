package pglock_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// findings are those of the store at a URL.
func findings(t *testing.T, storeURL string) map[string]driver.Finding {
	t.Helper()
	b := testkit.Open(t, storeURL)
	defer b.Close()
	return testkit.Findings(t, b)
}

// A healthy server has nothing worse than the plaintext connection of this test.
func TestDoctorHealthy(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"table", "advisory"} {
		storeURL := sqlkit.PostgresStore(t, "strategy="+strategy)
		testkit.Release(t, testkit.Lock(t, client(t, storeURL), "doctor"))
		m := findings(t, storeURL)
		for subject, f := range m {
			if f.Level != driver.Info && subject != "tls" && subject != "vacuum" && subject != "connections" {
				t.Errorf("%s: %s %s", subject, f.Level, f.Text)
			}
		}
		testkit.WantFinding(t, m, "store", driver.Info, strategy)
		testkit.WantFinding(t, m, "tls", driver.Warn, "plaintext")
	}
}

func TestDoctorFindings(t *testing.T) {
	t.Parallel()
	server := private(t, "max_connections = 13", "fsync = off", "synchronous_commit = off", "default_transaction_isolation = 'serializable'", "deadlock_timeout = 400ms")
	testkit.WantFinding(t, findings(t, server.URL()), "tables", driver.Warn, "version 0")
	testkit.Release(t, testkit.Lock(t, client(t, server.URL()), "doctor"))
	sqlkit.Postgres(t, server.URL(), "ALTER TABLE hasp_entries DROP CONSTRAINT hasp_entries_session_id_key")
	for range 7 { // beside those of the client and of the doctor
		conn, err := pgx.Connect(t.Context(), server.URL())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
	}
	m := findings(t, server.URL())
	testkit.WantFinding(t, m, "fsync", driver.Bad, "off")
	testkit.WantFinding(t, m, "synchronous_commit", driver.Warn, "off")
	testkit.WantFinding(t, m, "isolation", driver.Warn, "serializable")
	testkit.WantFinding(t, m, "tables", driver.Bad, "hasp_entries_session_id_key missing")
	testkit.WantFinding(t, m, "connections", driver.Warn, "of 10")
	advisory := sqlkit.With(server.URL(), "strategy=advisory")
	testkit.WantFinding(t, findings(t, advisory), "deadlock_timeout", driver.Warn, "400 ms")
	if f, found := findings(t, sqlkit.With(advisory, "slice=100ms"))["deadlock_timeout"]; found {
		t.Errorf("with shorter slices: %+v", f)
	}
}

func TestDoctorPooler(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := backends.SharedPostgres(t)
	testkit.WantFinding(t, findings(t, backends.StartPgBouncer(t, server, "transaction").URL()), "pooler", driver.Warn, "waiters ask")
	testkit.WantFinding(t, findings(t, backends.StartPgBouncer(t, server, "session").URL()), "pooler", driver.Info, "session mode")
	testkit.WantFinding(t, findings(t, server.URL()), "pooler", driver.Info, "none")
}

// A role whose transactions are read-only acquires nothing.
func TestDoctorReadOnly(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), "CREATE ROLE reader LOGIN; ALTER ROLE reader SET default_transaction_read_only = on")
	testkit.WantFinding(t, findings(t, as(server.URL(), "reader")), "role", driver.Bad, "read-only")
}
