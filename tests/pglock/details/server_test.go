package pglock_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	_ "github.com/hasplock/hasp/pglock"
)

func TestMain(m *testing.M) {
	os.Setenv("PGUSER", "postgres") // for URLs without a user, also in processes of the suite
	os.Exit(m.Run())
}

// executor runs statements as superuser, all on one connection: in a transaction, if they begin
// one.
func executor(t testing.TB, serverURL string) (exec func(stmt string)) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return func(stmt string) {
		t.Helper()
		if _, err := conn.Exec(testkit.Context(t), stmt); err != nil {
			t.Fatalf("%s: %v", stmt, err)
		}
	}
}

// ask reads one value as superuser.
func ask[V any](t testing.TB, serverURL, question string, args ...any) (v V) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), serverURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(t.Context(), question, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", question, err)
	}
	return v
}

// storeURLOfPgx is the shared server's for pgx alone, as superuser.
func storeURLOfPgx(t testing.TB) string { return backends.SharedPostgres(t).URL() }
