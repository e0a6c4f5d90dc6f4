//go:build unix

package main

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// The command does not get the store's password, by whichever of its names the store is called.
func TestNoSecretsForTheCommand(t *testing.T) {
	pg, maria, redis := backends.SharedPostgres(t).URL(), backends.SharedMariaDB(t).URL(), backends.SharedRedis(t).URL()
	t.Setenv("PGPASSWORD", "s3cret")
	t.Setenv("MYSQL_PWD", "s3cret")
	t.Setenv("REDISCLI_AUTH", "s3cret")
	for variable, stores := range map[string][]string{
		"PGPASSWORD":    {named(t, pg, "postgres"), named(t, pg, "postgresql")},
		"MYSQL_PWD":     {named(t, maria, "mysql"), named(t, maria, "mariadb")},
		"REDISCLI_AUTH": {named(t, redis, "redis"), named(t, redis, "valkey")},
	} {
		for _, store := range stores {
			for flag, want := range map[string]string{"--pass-credentials": "s3cret\n", "--pass-credentials=false": "none\n"} {
				code, out, errOut := hasp(t, store, "run", "-v", flag, "secrets", "--", "sh", "-c", "echo ${"+variable+"-none}")
				said := strings.Contains(errOut, variable+" is the store's, and not in the command's environment")
				if code != 0 || out != want || said != (want == "none\n") || strings.Contains(errOut, "s3cret") {
					t.Errorf("%s with %s: %d, %q, want %q: %s", store, flag, code, out, want, errOut)
				}
			}
		}
	}
}

// named calls the same store by another scheme.
func named(t *testing.T, store, scheme string) string {
	t.Helper()
	_, rest, ok := strings.Cut(store, "://")
	if !ok {
		t.Fatal(store)
	}
	return scheme + "://" + rest
}
