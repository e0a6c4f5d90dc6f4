package mysqllock_test

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/mysqllock"
)

// What is wrong with a URL is said without any I/O, and without what may be secret in it.
func TestBadURLs(t *testing.T) {
	const secret = "hunter2"
	for raw, want := range map[string]string{
		"mysql://u:hunter2@h":                                "name of a database",
		"mysql://u:hunter2@h/a/b":                            "name of a database",
		"mysql:///db":                                        "mysql://USER@HOST/DATABASE",
		"mysql://u:hunter2@h:0/db":                           "a number from 1 to 65535",
		"mysql://u:hunter2@h/db?prefx=hunter2":               `unknown parameter "prefx"`,
		"mysql://u@h/db?strategy=hunter2":                    `"strategy" must be one of table, getlock`,
		"mysql://u@h/db?prefix=x%27DROP":                     "prefix has 1 to 32",
		"mysql://u@h/db?prefix=9x":                           "prefix has 1 to 32",
		"mysql://u@h/db?connections=0":                       `"connections" must be from 1`,
		"mysql://u@h/db?retention=1m":                        "shorter than an hour",
		"mysql://u@h/db?fence=off":                           "only the strategy getlock",
		"mysql://u@h/db?names=plain":                         "plain names are for",
		"mysql://u@h/db?tls=false&ca=/x":                     "need tls=true",
		"mysql://u@h/db?tls=perhaps":                         `"tls"`,
		"mysql://u@h/db?ca=/nowhere":                         "parameter ca",
		"mysql://u@h/db?password_file=/nowhere":              "password_file",
		"mysql://u:hunter2@h/db?password_file=/etc/hostname": "as well",
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		_, err = driver.Lookup("mysql")(context.Background(), u)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %s", raw, err, want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the secret is in the message: %v", raw, err)
		}
	}
}

func TestBadOptions(t *testing.T) {
	if _, err := mysqllock.New(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("no pool: %v", err)
	}
	db := sqlkit.MySQL(t, "127.0.0.1:1", "u", "p", "d")
	for _, o := range []mysqllock.Options{{Strategy: "none"}, {Prefix: "A"}, {Connections: -1}, {Retention: 1}, {NoFence: true}, {PlainNames: true}} {
		if _, err := mysqllock.New(db, &o); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// Passwords come from the URL, a file or the environment; a wrong one is told at once, and
// is in no message.
func TestPasswords(t *testing.T) {
	m := backends.SharedMariaDB(t)
	base := sqlkit.MariaDBStore(t, m)
	nameless := strings.Replace(base, m.User+":"+m.Password+"@", m.User+"@", 1)
	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte(m.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.Release(t, testkit.Lock(t, client(t, sqlkit.With(nameless, "password_file="+file)), "a"))
	t.Setenv("MYSQL_PWD", m.Password)
	testkit.Release(t, testkit.Lock(t, client(t, nameless), "a"))
	t.Setenv("MYSQL_PWD", "hunter2")
	_, err := hasp.Open(ctx(t), nameless)
	if !errors.Is(err, driver.ErrRefused) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a wrong password: %v", err)
	}
}

// TLS is verified. A host that is not this one is spoken to in plaintext only if the URL says
// so, which the error shows without a server there.
func TestTLS(t *testing.T) {
	t.Parallel()
	m := backends.StartMariaDB(t, backends.MariaDBOptions{TLS: true})
	base := strings.TrimSuffix(m.URL(), m.Database) + "locks"
	b := testkit.Open(t, m.URL()+"?ca="+url.QueryEscape(m.CA))
	defer b.Close()
	testkit.Release(t, testkit.Lock(t, client(t, m.URL()+"?ca="+url.QueryEscape(m.CA)), "a"))
	for bad, cure := range map[string]string{base: "add tls=true", base + "?tls=true": "add ca=FILE", m.URL() + "?tls=false": "add tls=true"} {
		b, err := hasp.Open(ctx(t), bad)
		if err == nil {
			b.Close()
		}
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), cure) {
			t.Errorf("opened without the server's certificate authority: %s: %v, want %q", strings.TrimPrefix(bad, base), err, cure)
		}
	}
	plain := backends.SharedMariaDB(t)
	if _, err := hasp.Open(ctx(t), plain.URL()+"?tls=true"); !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "add tls=false") {
		t.Errorf("TLS asked of a server that has none: %v", err)
	}
}
