// Package sqlkit is shared by the tests of pglock and mysqllock. It links no client library: the tests
// import the drivers of database/sql that they name.
package sqlkit

import (
	"context"
	"database/sql"
	"strings"
	"testing"
)

// open is a pool, closed at the test's end.
func open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// Exec executes statements.
func Exec(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, text string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), text); err != nil {
		t.Fatalf("%.100s: %v", text, err)
	}
}

// With adds parameters to a URL.
func With(storeURL string, params ...string) string {
	if !strings.Contains(storeURL, "?") {
		return storeURL + "?" + strings.Join(params, "&")
	}
	return strings.Join(append([]string{storeURL}, params...), "&")
}
