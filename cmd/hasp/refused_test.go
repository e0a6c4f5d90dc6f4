//go:build unix

package main

import (
	"net/url"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// One fault has one exit code on every store: 78 if the store answers with a refusal, for any
// reason, and 69 only if it does not answer.
func TestRefusalsHaveOneCode(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		server := backends.StartPostgres(t, backends.PostgresOptions{})
		store := func(user string) string { return as(t, server.URL(), url.User(user)) }
		exits(t, 0, server.URL()) // and makes the tables
		postgresDo(t, server, `CREATE ROLE humble LOGIN; CREATE ROLE reader LOGIN SUPERUSER; CREATE ROLE crowd LOGIN CONNECTION LIMIT 0`)
		postgresDo(t, server, `ALTER ROLE reader SET default_transaction_read_only = on`)
		exits(t, 78, store("humble"))                                       // no permission
		exits(t, 78, with(t, store("humble"), "schema=elsewhere"))          // nor to make tables
		exits(t, 78, store("reader"))                                       // read-only
		exits(t, 78, store("absent"))                                       // no such user
		exits(t, 78, store("crowd"))                                        // no connection left
		exits(t, 78, strings.Replace(server.URL(), "/postgres?", "/x?", 1)) // no such database
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		exits(t, 69, server.URL())
	})
	t.Run("mysql", func(t *testing.T) {
		server := backends.StartMariaDB(t, backends.MariaDBOptions{})
		store := func(user string) string { return as(t, server.URL(), url.UserPassword(user, "p")) }
		exits(t, 0, server.URL())
		mariaDo(t, server, "CREATE USER humble IDENTIFIED BY 'p'", "GRANT SELECT ON hasp.* TO humble",
			"CREATE USER crowd IDENTIFIED BY 'p' WITH MAX_USER_CONNECTIONS 1", "GRANT ALL ON hasp.* TO crowd",
			"CREATE USER plain IDENTIFIED BY 'p'", "GRANT ALL ON hasp.* TO plain")
		exits(t, 78, store("humble"))                                // no permission
		exits(t, 78, with(t, store("humble"), "prefix=elsewhere_"))  // nor to make tables
		exits(t, 78, store("absent"))                                // no such user
		exits(t, 78, store("crowd"))                                 // no connection left
		exits(t, 78, strings.TrimSuffix(server.URL(), "/hasp")+"/x") // no such database
		exits(t, 0, store("plain"))
		mariaDo(t, server, "SET GLOBAL read_only = 1")
		exits(t, 78, store("plain")) // read-only
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		exits(t, 69, server.URL())
	})
	t.Run("redis", func(t *testing.T) {
		server := backends.StartRedis(t, backends.RedisOptions{})
		exits(t, 0, server.URL())
		redisDo(t, server, "ACL", "SETUSER", "humble", "on", ">p", "~other:*", "&*", "+@all")
		exits(t, 78, as(t, server.URL(), url.UserPassword("humble", "p"))) // no permission
		exits(t, 78, as(t, server.URL(), url.UserPassword("absent", "p"))) // no such user
		exits(t, 0, "redis://"+server.Addr+"/15")
		exits(t, 78, "redis://"+server.Addr+"/16") // no such database
		redisDo(t, server, "CONFIG", "SET", "maxmemory", "1")
		exits(t, 78, server.URL()) // full
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		exits(t, 69, server.URL())
	})
}

// exits runs a command under a lock and demands hasp's exit code, with a reason for each but 0.
func exits(t *testing.T, want int, store string) {
	t.Helper()
	code, _, errOut := hasp(t, store, "try", "a", "--", "true")
	if code != want || want != 0 && strings.Count(errOut, "\n") != 1 {
		t.Errorf("%s: exit code %d, want %d: %s", store, code, want, errOut)
	}
}
