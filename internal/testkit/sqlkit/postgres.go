package sqlkit

import (
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// MakeKeeper makes an ordinary role, which may create things in its schema and nothing else.
const MakeKeeper = "CREATE ROLE keeper LOGIN; CREATE SCHEMA locks AUTHORIZATION keeper"

var keeper sync.Once

// PostgresStore is the shared server's URL for the keeper, with further parameters.
func PostgresStore(t testing.TB, params ...string) string {
	t.Helper()
	serverURL := backends.SharedPostgres(t).URL()
	keeper.Do(func() { Postgres(t, serverURL, MakeKeeper) })
	return AsKeeper(serverURL, params...)
}

// AsKeeper gives a server's URL the keeper and its schema.
func AsKeeper(serverURL string, params ...string) string {
	return With(strings.Replace(serverURL, "postgres@", "keeper@", 1), append(params, "schema=locks")...)
}

// Postgres executes statements as superuser, on a connection that it closes.
func Postgres(t testing.TB, serverURL, statements string) {
	t.Helper()
	db := open(t, "pgx", serverURL)
	defer db.Close()
	Exec(t, db, statements)
}
