package backends

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// PostgresOptions configure PostgreSQL. The zero value lets everybody in as superuser,
// in plaintext.
type PostgresOptions struct {
	Password string   // of the superuser; "" lets everybody in
	TLS      bool     // TLS only
	Config   []string // further lines of postgresql.conf; they win over ours: "max_connections = 5"

	// ReplicaOf is the address of a server, or of a proxy before it, that lets everybody in:
	// this one is its replica, and does not keep a commit waiting.
	ReplicaOf string
}

// Postgres is one PostgreSQL server. Its superuser is postgres, its database postgres.
type Postgres struct {
	*Process
	Addr string // host:port
	CA   string // file of the certificate that signed the server's; "" without TLS

	options PostgresOptions
	account *serverprocess.Account
}

// StartPostgres starts a server for this test alone.
func StartPostgres(tb testing.TB, o PostgresOptions) *Postgres {
	tb.Helper()
	return private(tb, func() (*Postgres, error) { return startPostgres(o) }, postgresql)
}

var sharedPostgres once[*Postgres]

// SharedPostgres returns the process's server.
func SharedPostgres(tb testing.TB) *Postgres {
	tb.Helper()
	return sharedPostgres.get(tb, func() (*Postgres, error) { return startPostgres(PostgresOptions{}) }, postgresql)
}

// URL is the connection string, with user and password, as every client understands it.
func (p *Postgres) URL() string { return p.urlAt(p.Addr) }

func (p *Postgres) urlAt(addr string) string {
	u := url.URL{Scheme: "postgres", Host: addr, Path: "/postgres", User: url.User("postgres")}
	if p.options.Password != "" {
		u.User = url.UserPassword("postgres", p.options.Password)
	}
	q := url.Values{"sslmode": {"disable"}}
	if p.CA != "" {
		q = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {p.CA}}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// Discard ends the server cleanly: a killed one leaves shared memory behind.
func (p *Postgres) Discard() error {
	return errors.Join(p.Stop(), p.Process.Discard())
}

func startPostgres(o PostgresOptions) (*Postgres, error) {
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return nil, err
	}
	p := &Postgres{Addr: serverprocess.Local(ports[0]), options: o}
	if p.account, err = serverprocess.AccountFor("postgres"); err != nil { // it refuses to run as root
		return nil, err
	}
	dir, err := serverprocess.NewDir("postgres", p.account)
	if err != nil {
		return nil, err
	}
	initialise := p.initialise
	if o.ReplicaOf != "" {
		initialise = p.copy
	}
	if err := initialise(dir, ports[0]); err != nil {
		return nil, fmt.Errorf("initialise postgres: %w", err)
	}
	p.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "postgres " + p.Addr, Dir: dir, User: p.account, Release: release,
		Argv: []string{postgresql.path(0), "-D", filepath.Join(dir, "data")},
		Env:  []string{"LC_ALL=C"},
		Stop: serverprocess.Interrupt, // terminate would wait for every client to leave
		Ready: func() error {
			return postgresReady(p.Addr)
		},
	})
	return p, err
}

// initialise makes an empty database, with what a server needs to survive a crash
// switched on, as it is by default: only the making itself is not synced.
func (p *Postgres) initialise(dir string, port int) error {
	data, method := filepath.Join(dir, "data"), "trust"
	if p.options.Password == "" {
		if err := p.copyTemplate(dir, data); err != nil {
			return err
		}
	} else {
		passwords := filepath.Join(dir, "password")
		if err := serverprocess.WriteFile(passwords, p.account, p.options.Password); err != nil {
			return err
		}
		if err := p.initdb(dir, data, "--pwfile="+passwords); err != nil {
			return err
		}
		method = "scram-sha-256"
	}
	conf := []string{
		fmt.Sprintf("port = %d", port), "listen_addresses = '127.0.0.1'", "unix_socket_directories = ''",
		"max_connections = 1200",            // benchmarks have 512 waiters with a connection each
		"dynamic_shared_memory_type = mmap", // in the data directory, and removed with it
	}
	host := "host"
	if p.options.TLS {
		c, err := newCertificates(dir, p.account)
		if err != nil {
			return err
		}
		p.CA, host = c.ca, "hostssl"
		conf = append(conf, "ssl = on", "ssl_cert_file = '"+c.cert+"'", "ssl_key_file = '"+c.key+"'")
	}
	return errors.Join(
		serverprocess.WriteFile(filepath.Join(data, "postgresql.conf"), p.account, append(conf, p.options.Config...)...),
		serverprocess.WriteFile(filepath.Join(data, "pg_hba.conf"), p.account, host+" all all 127.0.0.1/32 "+method, host+" replication all 127.0.0.1/32 "+method))
}

func (p *Postgres) initdb(dir, data string, more ...string) error {
	args := []string{"-D", data, "-U", "postgres", "--no-sync", "--encoding=UTF8", "--locale=C", "--auth=trust"}
	return p.runIn(dir, postgresql.path(1), append(args, more...)...)
}

// copy makes a replica's files: those of the other server, with a separate port.
func (p *Postgres) copy(dir string, port int) error {
	host, from, err := net.SplitHostPort(p.options.ReplicaOf)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "data")
	program := filepath.Join(filepath.Dir(postgresql.path(0)), "pg_basebackup")
	if err := p.runIn(dir, program, "-D", data, "-h", host, "-p", from, "-U", "postgres", "--checkpoint=fast", "--no-sync", "--write-recovery-conf"); err != nil {
		return err
	}
	// What is set by command wins over the copied file, as the last word of it.
	conf, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(conf, "port = %d\n", port)
	return errors.Join(err, conf.Close())
}

// runIn runs a program to its end as the server's account.
func (p *Postgres) runIn(dir, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.SysProcAttr = dir, serverprocess.Attributes(p.account)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(program), err, out)
	}
	return nil
}

// postgresReady knocks as a client does. A server that starts up, recovers or shuts down
// answers with an error, one that serves with a question for the password or a welcome.
func postgresReady(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	body := binary.BigEndian.AppendUint32(nil, 3<<16) // protocol 3.0
	body = append(body, "user\x00postgres\x00database\x00postgres\x00\x00"...)
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(4+len(body))), body...)); err != nil {
		return err
	}
	reply := make([]byte, 512)
	n, err := io.ReadAtLeast(conn, reply, 1)
	if err != nil {
		return err
	}
	// A TLS-only server refuses this plaintext knock with 28000, which it does only once
	// it serves.
	if text := string(reply[:n]); reply[0] != 'R' && !strings.Contains(text, "\x00C28000\x00") {
		return fmt.Errorf("%s answers %q", addr, text)
	}
	return nil
}
