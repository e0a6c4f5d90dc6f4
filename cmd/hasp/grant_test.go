//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// A role that may not create is told what its owner runs; after that every verb works with it.
func TestMigrateGrant(t *testing.T) {
	server := backends.StartPostgres(t, backends.PostgresOptions{})
	postgresDo(t, server, `CREATE ROLE "the app" LOGIN; REVOKE CREATE ON SCHEMA public FROM public`)
	app := strings.Replace(server.URL(), "postgres@", "the%20app@", 1)
	if code, _, errOut := hasp(t, app, "try", "a", "--", "true"); code != 78 || !strings.Contains(errOut, "hasp migrate --grant ROLE") {
		t.Errorf("without tables: %d, %s", code, errOut)
	}
	if code, _, errOut := hasp(t, server.URL(), "migrate", "--grant", "stranger"); code != 78 || !strings.Contains(errOut, `role "stranger" does not exist`) {
		t.Errorf("no such role: %d, %s", code, errOut)
	}
	code, out, errOut := hasp(t, server.URL(), "migrate", "--grant", "the app", "--json")
	if code != 0 || !strings.Contains(out, `"granted":"the app"`) {
		t.Errorf("migrate: %d, %s%s", code, out, errOut)
	}
	for _, args := range [][]string{{"run", "a", "--", "true"}, {"ls"}, {"who", "a"}, {"doctor"}, {"migrate"}} {
		if code, _, errOut := hasp(t, app, args...); code != 0 {
			t.Errorf("%v: %d, %s", args, code, errOut)
		}
	}
	if code, _, errOut := hasp(t, backends.SharedMariaDB(t).URL(), "migrate", "--grant", "app"); code != 78 || !strings.Contains(errOut, "for PostgreSQL") {
		t.Errorf("MariaDB: %d, %s", code, errOut)
	}
}
