package mysqllock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// Two stores have one identity exactly if a lock of one keeps the other out, with all
// kinds of URLs: other hosts, users and options, a pool of the program's, a dump of another
// database, a second server.
func TestIdentity(t *testing.T) {
	m, second := backends.SharedMariaDB(t), backends.StartMariaDB(t, backends.MariaDBOptions{})
	base, db := sqlkit.MariaDBStore(t, m), sqlkit.MariaDBAdmin(t, m)
	sqlkit.Exec(t, db, "CREATE DATABASE IF NOT EXISTS identity_a")
	sqlkit.Exec(t, db, "CREATE DATABASE IF NOT EXISTS identity_b")
	sqlkit.Exec(t, db, "CREATE USER IF NOT EXISTS plain_user@'%' IDENTIFIED BY 'p'")
	sqlkit.Exec(t, db, "GRANT SELECT, INSERT, UPDATE, DELETE, EXECUTE ON identity_a.* TO plain_user@'%'")
	a, b := strings.TrimSuffix(base, "locks")+"identity_a", strings.TrimSuffix(base, "locks")+"identity_b"
	elsewhere := sqlkit.MariaDBStore(t, second)
	sqlkit.Exec(t, sqlkit.MariaDBAdmin(t, second), "CREATE DATABASE identity_a")

	// A database is made from the dump of another, with its tables of locks.
	testkit.Release(t, testkit.Lock(t, client(t, a), "warm-up"))
	testkit.Release(t, testkit.Lock(t, client(t, b), "warm-up"))
	sqlkit.Exec(t, db, "UPDATE identity_b.hasp_store SET id = (SELECT id FROM identity_a.hasp_store)")

	stores := map[string]driver.Backend{}
	for what, u := range map[string]string{
		"table": a, "table, another host": strings.Replace(a, "127.0.0.1", "localhost", 1),
		"table, another scheme": strings.Replace(a, "mysql:", "mariadb:", 1), "table, options": sqlkit.With(a, "connections=2&retention=2h"),
		"table, an ordinary user": strings.Replace(a, m.User+":"+m.Password+"@", "plain_user:p@", 1),
		"table, prefix":           sqlkit.With(a, "prefix=other_"), "table, the dump": b, "table, another database": base,
		"table, another server": strings.TrimSuffix(elsewhere, "locks") + "identity_a",
		"getlock":               sqlkit.With(a, "strategy=getlock"), "getlock, no tokens": sqlkit.With(a, "strategy=getlock&fence=off"),
		"getlock, prefix": sqlkit.With(a, "strategy=getlock&prefix=other_"), "getlock, another database": sqlkit.With(b, "strategy=getlock"),
		"getlock, another server": sqlkit.With(strings.TrimSuffix(elsewhere, "locks")+"identity_a", "strategy=getlock"),
		"plain names":             sqlkit.With(a, "strategy=getlock&names=plain"), "plain names, no tokens": sqlkit.With(a, "strategy=getlock&names=plain&fence=off"),
		"plain names, another database": sqlkit.With(b, "strategy=getlock&names=plain"), "plain names, prefix": sqlkit.With(a, "strategy=getlock&names=plain&prefix=other_"),
	} {
		stores[what] = testkit.Open(t, u)
	}
	pooled, err := mysqllock.New(sqlkit.MySQL(t, m.Addr, m.User, m.Password, "identity_a"), nil)
	if err != nil {
		t.Fatal(err)
	}
	stores["table, a pool"] = pooled

	clients, ids := map[string]*hasp.Client{}, map[string]string{}
	for what, s := range stores {
		ids[what] = testkit.Identity(t, s)
		c, err := hasp.New(s, hasp.WithTTL(calm))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[what] = c
	}
	for one, c := range clients {
		held := testkit.Lock(t, c, "identity-name")
		for other, o := range clients {
			if one == other {
				continue
			}
			l, err := o.Mutex("identity-name").TryLock(ctx(t))
			if err == nil {
				testkit.Release(t, l)
			} else if !errors.Is(err, hasp.ErrBusy) {
				t.Fatal(err)
			}
			if contend := err != nil; contend != (ids[one] == ids[other]) {
				t.Errorf("%s and %s: contend %t, and are called %s and %s", one, other, contend, ids[one], ids[other])
			}
		}
		testkit.Release(t, held)
	}
}

// A store's identity outlives a restart of its server, though not every server has a number.
func TestIdentityAfterRestart(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{})
	base := sqlkit.MariaDBStore(t, m)
	ids := func() string {
		all := ""
		for _, strategy := range []string{"table", "getlock"} {
			b := testkit.Open(t, sqlkit.With(base, "strategy="+strategy))
			all += fmt.Sprintln(testkit.Identity(t, b))
			b.Close()
		}
		return all
	}
	before := ids()
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
	if after := ids(); after != before {
		t.Errorf("was\n%sand is\n%s", before, after)
	}
}
