package backends

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// PgBouncer is a connection pool in front of a PostgreSQL server. Clients connect to it
// in plaintext, as the same users with the same passwords.
type PgBouncer struct {
	*Process
	Addr string

	server *Postgres
}

// StartPgBouncer starts a pool in front of the server for this test alone. mode is
// pgbouncer's pool_mode: "session", "transaction" or "statement". The pool has 20
// connections to the server.
func StartPgBouncer(tb testing.TB, server *Postgres, mode string) *PgBouncer {
	tb.Helper()
	return private(tb, func() (*PgBouncer, error) { return startPgBouncer(server, mode) }, pgbouncer)
}

// URL is the connection string through the pool.
func (b *PgBouncer) URL() string { return b.server.urlAt(b.Addr) }

func startPgBouncer(server *Postgres, mode string) (*PgBouncer, error) {
	if server.options.TLS {
		return nil, fmt.Errorf("pgbouncer in front of a TLS server is not supported here")
	}
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return nil, err
	}
	b := &PgBouncer{Addr: serverprocess.Local(ports[0]), server: server}
	dir, err := serverprocess.NewDir("pgbouncer", server.account) // it refuses to run as root, too
	if err != nil {
		return nil, err
	}
	users, method := filepath.Join(dir, "users"), "trust"
	if server.options.Password != "" {
		method = "scram-sha-256"
	}
	if err := serverprocess.WriteFile(users, server.account, fmt.Sprintf("%q %q", "postgres", server.options.Password)); err != nil {
		return nil, err
	}
	conf := filepath.Join(dir, "pgbouncer.ini")
	if err := serverprocess.WriteFile(conf, server.account, "[databases]", "* = "+hostPort(server.Addr), "[pgbouncer]",
		"listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", ports[0]), "unix_socket_dir =",
		"auth_type = "+method, "auth_file = "+users, "admin_users = postgres",
		"pool_mode = "+mode, "default_pool_size = 20", "max_client_conn = 2000",
		"ignore_startup_parameters = extra_float_digits",
	); err != nil {
		return nil, err
	}
	b.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "pgbouncer " + b.Addr, Dir: dir, User: server.account, Release: release,
		Argv: []string{pgbouncer.path(0), conf}, Stop: serverprocess.Terminate,
		Ready: func() error { return postgresReady(b.Addr) },
	})
	return b, err
}

func hostPort(addr string) string {
	host, port, _ := strings.Cut(addr, ":")
	return "host=" + host + " port=" + port
}
