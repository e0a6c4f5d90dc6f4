package backends

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
)

// MariaDBOptions configure MariaDB. The zero value is plaintext with the defaults.
type MariaDBOptions struct {
	TLS    bool     // TLS only
	Config []string // options of mariadbd, without dashes; they win over ours: "wait_timeout=2"
}

// MariaDB is one MariaDB server.
type MariaDB struct {
	*Process
	Addr string // host:port
	CA   string // file of the certificate that signed the server's; "" without TLS

	// User may do everything, in Database and elsewhere.
	User, Password, Database string
}

// StartMariaDB starts a server for this test alone.
func StartMariaDB(tb testing.TB, o MariaDBOptions) *MariaDB {
	tb.Helper()
	return private(tb, func() (*MariaDB, error) { return startMariaDB(o) }, mariadb)
}

var sharedMariaDB once[*MariaDB]

// SharedMariaDB returns the process's server.
func SharedMariaDB(tb testing.TB) *MariaDB {
	tb.Helper()
	return sharedMariaDB.get(tb, func() (*MariaDB, error) { return startMariaDB(MariaDBOptions{}) }, mariadb)
}

// URL names the server as mysqllock's URL does, with user and password.
func (m *MariaDB) URL() string {
	u := url.URL{Scheme: "mysql", Host: m.Addr, Path: "/" + m.Database, User: url.UserPassword(m.User, m.Password)}
	return u.String()
}

func startMariaDB(o MariaDBOptions) (*MariaDB, error) {
	ports, release, err := serverprocess.ReservePorts(1)
	if err != nil {
		return nil, err
	}
	m := &MariaDB{Addr: serverprocess.Local(ports[0]), User: "hasp", Password: "hasp", Database: "hasp"}
	account, err := serverprocess.AccountFor("mysql") // it does not like to run as root
	if err != nil {
		return nil, err
	}
	dir, err := serverprocess.NewDir("mariadb", account)
	if err != nil {
		return nil, err
	}
	init, data := filepath.Join(dir, "init.sql"), filepath.Join(dir, "data")
	if err := serverprocess.WriteFile(init, account,
		"CREATE DATABASE IF NOT EXISTS hasp;",
		"CREATE USER IF NOT EXISTS hasp@'%' IDENTIFIED BY 'hasp';",
		"GRANT ALL ON *.* TO hasp@'%' WITH GRANT OPTION;",
	); err != nil {
		return nil, err
	}
	make := exec.Command(mariadb.path(1), "--no-defaults", "--datadir="+data, "--skip-test-db", "--auth-root-authentication-method=normal")
	make.Dir, make.SysProcAttr = dir, serverprocess.Attributes(account)
	make.Env = append(os.Environ(), "TMPDIR="+dir) // for the same reason as below
	if out, err := make.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initialise mariadb: %w\n%s", err, out)
	}
	// A server that starts clears its directory for temporary tables, also of those that
	// another one beside it is using: to each its own.
	argv := []string{mariadb.path(0), "--no-defaults", "--datadir=" + data, "--tmpdir=" + dir, "--init-file=" + init,
		fmt.Sprintf("--port=%d", ports[0]), "--bind-address=127.0.0.1", "--socket=" + filepath.Join(dir, "socket"),
		"--skip-name-resolve", "--max-connections=1200"} // benchmarks have 512 waiters with a connection each
	if o.TLS {
		c, err := newCertificates(dir, account)
		if err != nil {
			return nil, err
		}
		m.CA = c.ca
		argv = append(argv, "--ssl-ca="+c.ca, "--ssl-cert="+c.cert, "--ssl-key="+c.key, "--require-secure-transport=ON")
	}
	for _, line := range o.Config {
		argv = append(argv, "--"+line)
	}
	m.Process, err = serverprocess.Start(serverprocess.Command{
		Name: "mariadb " + m.Addr, Argv: argv, Dir: dir, User: account, Release: release, Stop: serverprocess.Terminate,
		Ready: m.greets,
		// MDEV-36845: after a kill InnoDB may number its transactions from one that is too small, and then ends by this.
		Fault: "Failing assertion: tail.trx_no <= last_trx_no",
	})
	return m, err
}

// greets complains unless the server greets: it speaks first, and only once the init
// file has been executed.
func (m *MariaDB) greets() error {
	conn, err := net.DialTimeout("tcp", m.Addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	head := make([]byte, 5) // length, sequence number, version of the protocol or 255
	if _, err := io.ReadFull(conn, head); err != nil {
		return err
	}
	if head[4] != 10 {
		return fmt.Errorf("%s greets with %d", m.Addr, head[4])
	}
	return nil
}
