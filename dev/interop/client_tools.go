package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
)

// etcdctl is `etcdctl lock`: a process for each lock, which prints its key when it holds,
// releases when it is told to end, and ends by itself when its session is gone.
type etcdctl struct {
	address string
	ttl     time.Duration
	running *exec.Cmd
	ended   chan struct{}
}

func newEtcdctl(_ context.Context, _, address string, ttl time.Duration) (locker, string, error) {
	out, err := exec.Command("etcdctl", "version").Output()
	version, _, _ := strings.Cut(string(out), "\n")
	return &etcdctl{address: address, ttl: ttl}, strings.Replace(version, " version:", "", 1), err
}

func (e *etcdctl) lock(name string) error {
	cmd := exec.Command("etcdctl", "--endpoints", e.address, "lock", "--ttl", fmt.Sprint(int(e.ttl/time.Second)), name)
	cmd.Env = append(cmd.Environ(), "ETCDCTL_API=3")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, name+"/") {
		return errors.Join(fmt.Errorf("etcdctl lock says %q: %w", line, err), cmd.Process.Kill(), cmd.Wait())
	}
	e.running, e.ended = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // it ends by a signal
		close(e.ended)
	}()
	return nil
}

func (e *etcdctl) try(string) (bool, error) { return false, errNone }

func (e *etcdctl) unlock() error {
	if held, _ := e.check(); !held {
		return fmt.Errorf("%w: etcdctl has ended", errLost)
	}
	_ = e.running.Process.Signal(syscall.SIGTERM) // it may end by itself just now
	<-e.ended
	return nil
}

func (e *etcdctl) check() (bool, error) {
	select {
	case <-e.ended:
		return false, nil
	default:
		return true, nil
	}
}

// shell is a database's own client, which holds a session open.
type shell struct {
	in    io.Writer
	out   *bufio.Reader
	take  string // with %s for the name and %s for how long to wait
	now   string // the same without waiting
	give  string
	holds string // the query whether it is held; "" if only the session's life shows it
	name  string
}

// newShell starts the client, which shares our process group and so is killed and stopped
// with us.
func newShell(s shell, argv ...string) (*shell, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	s.in, s.out = in, bufio.NewReader(out)
	return &s, cmd.Start()
}

// ask sends a query with one row of one column and returns the value.
func (s *shell) ask(query, name string) (string, error) {
	if _, err := fmt.Fprintf(s.in, query+";\n", name); err != nil {
		return "", err
	}
	line, err := s.out.ReadString('\n')
	return strings.TrimSpace(line), err
}

func yes(answer string) bool { return answer == "1" || answer == "t" }

func (s *shell) lock(name string) error {
	s.name = name
	answer, err := s.ask(s.take, name)
	if err == nil && !yes(answer) {
		err = fmt.Errorf("the server answers %q", answer)
	}
	return err
}

func (s *shell) try(name string) (bool, error) {
	s.name = name
	answer, err := s.ask(s.now, name)
	return yes(answer), err
}

func (s *shell) unlock() error {
	answer, err := s.ask(s.give, s.name)
	if err == nil && !yes(answer) {
		err = fmt.Errorf("%w: the server answers %q", errLost, answer)
	}
	return err
}

func (s *shell) check() (bool, error) {
	if s.holds == "" {
		return false, errNone
	}
	answer, err := s.ask(s.holds, s.name)
	return yes(answer), err
}

func newPsql(_ context.Context, _, address string, _ time.Duration) (locker, string, error) {
	out, err := exec.Command("psql", "--version").Output()
	if err != nil {
		return nil, "", err
	}
	s, err := newShell(shell{
		take: "SELECT true FROM pg_advisory_lock(%s)",
		now:  "SELECT pg_try_advisory_lock(%s)",
		give: "SELECT pg_advisory_unlock(%s)",
	}, "psql", "--no-psqlrc", "--quiet", "--tuples-only", "--no-align", address)
	version := strings.Fields(string(out))
	return s, "psql " + version[2], err
}

// newMariaDB speaks to a server whose address is a URL as mysqllock's.
func newMariaDB(_ context.Context, _, address string, _ time.Duration) (locker, string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", err
	}
	host, port, err := net.SplitHostPort(u.Host)
	if err != nil {
		return nil, "", err
	}
	out, err := exec.Command("mariadb", "--version").Output()
	if err != nil {
		return nil, "", err
	}
	password, _ := u.User.Password()
	s, err := newShell(shell{
		take:  "SELECT GET_LOCK('%s', 3600)",
		now:   "SELECT GET_LOCK('%s', 0)",
		give:  "SELECT RELEASE_LOCK('%s')",
		holds: "SELECT IS_USED_LOCK('%s') = CONNECTION_ID()",
	}, "mariadb", "--no-defaults", "--batch", "--skip-column-names", "--unbuffered", "--protocol=tcp",
		"--host="+host, "--port="+port, "--user="+u.User.Username(), "--password="+password)
	_, version, _ := strings.Cut(string(out), "Distrib ")
	version, _, _ = strings.Cut(version, ",")
	return s, "mariadb " + version, err
}

// migrateLock takes the lock as golang-migrate does before it migrates: its driver for pgx takes an
// advisory lock by the database's, the schema's and the table's name.
type migrateLock struct{ driver database.Driver }

func newMigrate(_ context.Context, _, address string, _ time.Duration) (locker, string, error) {
	d, err := (&migratepgx.Postgres{}).Open(strings.Replace(address, "postgres://", "pgx5://", 1))
	return &migrateLock{d}, "golang-migrate " + moduleVersion("github.com/golang-migrate/migrate/v4"), err
}

func (m *migrateLock) lock(string) error        { return m.driver.Lock() }
func (m *migrateLock) try(string) (bool, error) { return false, errNone }
func (m *migrateLock) unlock() error            { return m.driver.Unlock() }
func (m *migrateLock) check() (bool, error)     { return false, errNone }
