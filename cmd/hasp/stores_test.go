//go:build unix

package main

import (
	"context"
	"database/sql"
	"net/url"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/jackc/pgx/v5"
	"github.com/rogpeppe/go-internal/testscript"
)

// This test binary is the hasp that the tests run, as a process, against real servers.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"hasp": main})
}

// hasp runs the command on a store and returns its exit code and what it printed.
func hasp(t *testing.T, store string, args ...string) (code int, out, errOut string) {
	t.Helper()
	return testkit.Program(t, "hasp", store, args...)
}

// with adds parameters to a store's URL, or replaces them.
func with(t *testing.T, store, parameters string) string {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	more, err := url.ParseQuery(parameters)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for key := range more {
		q.Set(key, more.Get(key))
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// as replaces user and password.
func as(t *testing.T, store string, user *url.Userinfo) string {
	t.Helper()
	u, err := url.Parse(store)
	if err != nil {
		t.Fatal(err)
	}
	u.User = user
	return u.String()
}

// postgresDo runs statements on a connection that stays open until the test ends.
func postgresDo(t *testing.T, server *backends.Postgres, statements string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), statements); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// mariaDo does the same.
func mariaDo(t *testing.T, server *backends.MariaDB, statements ...string) {
	t.Helper()
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName = "tcp", server.Addr, server.User, server.Password, server.Database
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	for _, s := range statements {
		if _, err := conn.ExecContext(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func redisDo(t *testing.T, server *backends.Redis, args ...string) {
	t.Helper()
	if _, err := server.Do(args...); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
}

// A lock that another library holds has no time since when in the store: there is no age to
// show, and not one of 292 years. Our own have one.
func TestAgeOfForeignHolders(t *testing.T) {
	pg, maria, redis := backends.SharedPostgres(t), backends.SharedMariaDB(t), backends.SharedRedis(t)
	postgresDo(t, pg, "SELECT pg_advisory_lock(4711)")
	mariaDo(t, maria, "DO GET_LOCK('4711', 0)")
	redisDo(t, redis, "SET", "4711", "somebody", "PX", "600000")
	for store, lists := range map[string]bool{
		with(t, pg.URL(), "strategy=advisory&key=integer"):   true,
		with(t, maria.URL(), "strategy=getlock&names=plain"): false,
		with(t, redis.URL(), "strategy=setnx"):               true,
	} {
		name := store[:5]
		for _, args := range [][]string{{"who", "4711"}, {"ls"}, {"top", "--times", "1"}} {
			if args[0] != "who" && !lists {
				continue
			}
			code, out, errOut := hasp(t, store, args...)
			if code != 0 || strings.Contains(out, "h0m") || strings.Contains(out, "0001-01-01") || strings.Contains(out, "1970-01-01") {
				t.Errorf("%s: hasp %s: %d, %s%s", name, args, code, out, errOut)
			}
		}
		_, table, _ := hasp(t, store, "who", "4711")
		lines := strings.Split(strings.TrimSpace(table), "\n")
		if since := strings.Index(lines[0], "SINCE"); len(lines) != 2 || !strings.HasPrefix(lines[1][since:], "-      -    ") {
			t.Errorf("%s: who prints\n%s", name, table)
		}
		if code, out, _ := hasp(t, store, "who", "--json", "4711"); code != 0 || !strings.Contains(out, `"holders":[{"id":`) || strings.Contains(out, `"since"`) {
			t.Errorf("%s: who --json prints %d, %s", name, code, out)
		}
		// What is in the way says the message of a try as well.
		if code, _, errOut := hasp(t, store, "try", "4711", "--", "true"); code != 75 || strings.Contains(errOut, " since ") {
			t.Errorf("%s: try: %d, %s", name, code, errOut)
		}
		// The control: of our own it is known since when.
		if code, out, errOut := hasp(t, store, "run", "--pass-credentials", "4712", "--", "hasp", "who", "--json", "4712"); code != 0 || !strings.Contains(out, `"since":"2`) {
			t.Errorf("%s: our own: %d, %s%s", name, code, out, errOut)
		}
	}
}

// fence=off is spelled so wherever a strategy can do without tokens, and the spellings that were
// are refused rather than taken for something else.
func TestFenceOff(t *testing.T) {
	pg, maria, redis := backends.SharedPostgres(t).URL(), backends.SharedMariaDB(t).URL(), backends.SharedRedis(t).URL()
	for _, store := range []string{
		with(t, pg, "strategy=advisory"), with(t, maria, "strategy=getlock"),
		with(t, redis, "strategy=setnx"), with(t, redis, "strategy=redisson"),
	} {
		for fence, token := range map[string]string{"fence=off": "none", "fence=on": "some", "": "some"} {
			code, out, errOut := hasp(t, with(t, store, fence), "run", "fenced", "--", "sh", "-c", `echo ${HASP_TOKEN:+some}${HASP_TOKEN-none}`)
			if code != 0 || !strings.HasPrefix(out, token) {
				t.Errorf("%s with %q: %d, %s%s", store, fence, code, out, errOut)
			}
		}
		if code, _, errOut := hasp(t, with(t, store, "fence=false"), "try", "fenced", "--", "true"); code != 78 || !strings.Contains(errOut, `"fence" must be one of on, off`) {
			t.Errorf("%s with fence=false: %d, %s", store, code, errOut)
		}
	}
	for _, store := range []string{pg, maria, redis} {
		if code, _, errOut := hasp(t, with(t, store, "fence=off"), "try", "fenced", "--", "true"); code != 78 {
			t.Errorf("%s, which has its tokens for nothing: %d, %s", store, code, errOut)
		}
	}
}
