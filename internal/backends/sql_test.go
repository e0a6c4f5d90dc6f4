package backends

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testtier"
)

// client runs a database's own command-line client, for three seconds at most, and
// complains about any other output than the one wanted.
func client(want string, argv ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", argv[0], err, out)
	}
	if got := strings.TrimSpace(string(out)); got != want {
		return fmt.Errorf("%s printed %q, want %q", argv[0], got, want)
	}
	return nil
}

func psql(url, query, want string) error {
	return client(want, "psql", "-XqAt", "-c", query, url)
}

func (m *MariaDB) query(query, want string) error {
	host, port, err := net.SplitHostPort(m.Addr)
	if err != nil {
		return err
	}
	args := []string{"mariadb", "--no-defaults", "-h" + host, "-P" + port, "-u" + m.User, "-p" + m.Password, "-NBe", query}
	if m.CA != "" {
		args = append(args, "--ssl-ca="+m.CA, "--ssl-verify-server-cert")
	} else {
		args = append(args, "--skip-ssl")
	}
	return client(want, append(args, m.Database)...)
}

func TestPostgresSingle(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t, PostgresOptions{})
	ordeal(t, p,
		func() error { return psql(p.URL(), "SELECT 1", "1") },
		func() error { // without the notice that the table is there
			return psql(p.URL(), "SET client_min_messages = warning; CREATE TABLE IF NOT EXISTS t AS SELECT 'value' AS v", "")
		},
		func() error { return psql(p.URL(), "SELECT v FROM t", "value") })
}

// Servers are copies of one data directory, and yet different stores.
func TestPostgresIdentifiersDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 3 {
		p := StartPostgres(t, PostgresOptions{})
		id, err := exec.Command("psql", "-XqAt", "-c", "SELECT system_identifier FROM pg_control_system()", p.URL()).Output()
		if err != nil {
			t.Fatal(err)
		}
		seen[strings.TrimSpace(string(id))] = true
		if err := errors.Join(p.Kill(), p.Restart()); err != nil { // recovery looks for it in the log
			t.Fatal(err)
		}
	}
	if len(seen) != 3 || seen[""] {
		t.Errorf("three servers have the identifiers %v", seen)
	}
}

func TestPostgresKillTakesEveryBackend(t *testing.T) {
	p := StartPostgres(t, PostgresOptions{})
	// A backend in the middle of a statement does not notice that its parent is gone.
	busy := exec.Command("psql", "-XqAt", "-c", "SELECT pg_sleep(60)", p.URL())
	if err := busy.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1) // buffered: the goroutine ends even if the test no longer listens
	go func() { done <- busy.Wait() }()
	if err := eventually(func() error {
		return psql(p.URL(), "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%'", "1")
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err == nil {
			t.Fatal("a client of a killed server ended well")
		}
	case <-time.After(40 * time.Second):
		_ = busy.Process.Kill()
		t.Fatal("a client still waits for a killed server")
	}
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
}

func TestPostgresPasswordTLSAndConfig(t *testing.T) {
	p := StartPostgres(t, PostgresOptions{Password: "secret", TLS: true, Config: []string{"max_connections = 7"}})
	if err := patiently(func() error { return psql(p.URL(), "SHOW max_connections", "7") }); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range []string{
		strings.Replace(p.URL(), "secret", "guess", 1),
		strings.Replace(p.URL(), "verify-full", "disable", 1),
	} {
		if psql(wrong, "SELECT 1", "1") == nil {
			t.Errorf("the server lets %s in", wrong)
		}
	}
}

func TestPgBouncer(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	p := StartPostgres(t, PostgresOptions{Password: "secret"})
	for _, mode := range []string{"session", "transaction"} {
		b := StartPgBouncer(t, p, mode)
		ordeal(t, b, func() error { return psql(b.URL(), "SELECT 1", "1") }, nil, nil)
		if err := b.Resume(); err != nil {
			t.Fatal(err)
		}
		admin := strings.Replace(b.URL(), "/postgres?", "/pgbouncer?", 1)
		var out []byte
		err := patiently(func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			out, err = exec.CommandContext(ctx, "psql", "-XqAt", "-c", "SHOW CONFIG", admin).Output()
			return err
		})
		if err != nil || !strings.Contains(string(out), "pool_mode|"+mode+"|") {
			t.Errorf("pgbouncer's configuration (%v) does not say pool_mode %s:\n%s", err, mode, out)
		}
		if psql(strings.Replace(b.URL(), "secret", "guess", 1), "SELECT 1", "1") == nil {
			t.Error("pgbouncer lets a wrong password in")
		}
	}
}

func TestMariaDBSingle(t *testing.T) {
	t.Parallel()
	m := StartMariaDB(t, MariaDBOptions{})
	ordeal(t, m,
		func() error { return m.query("SELECT 1", "1") },
		func() error { return m.query("CREATE TABLE IF NOT EXISTS t AS SELECT 'value' AS v", "") },
		func() error { return m.query("SELECT v FROM t", "value") })
}

func TestMariaDBTLSAndConfig(t *testing.T) {
	m := StartMariaDB(t, MariaDBOptions{TLS: true, Config: []string{"wait_timeout=7"}})
	if err := patiently(func() error {
		return m.query("SELECT @@global.wait_timeout, @@require_secure_transport", "7\t1")
	}); err != nil {
		t.Fatal(err)
	}
	plain := *m
	plain.CA = ""
	if plain.query("SELECT 1", "1") == nil {
		t.Error("the server answers in plaintext")
	}
}

func TestSharedSQLServes(t *testing.T) {
	p, m := SharedPostgres(t), SharedMariaDB(t)
	if err := patiently(func() error { return psql(p.URL(), "SELECT 1", "1") }); err != nil {
		t.Error(err)
	}
	if err := patiently(func() error { return m.query("SELECT 1", "1") }); err != nil {
		t.Error(err)
	}
}
