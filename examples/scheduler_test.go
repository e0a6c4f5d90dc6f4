//go:build unix

package examples

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/hasplock/hasp/internal/backends"
)

// One of three leads, through a pool in transaction mode. When it is killed another does. One that
// is stopped for longer than its TTL is followed by the third, and changes nothing when it goes on.
// The control: without the comparison in its statement its next turn would count.
func TestScheduler(t *testing.T) {
	server := backends.StartPostgres(t, backends.PostgresOptions{})
	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `CREATE TABLE schedule (id text PRIMARY KEY, turns bigint, token bigint)`); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO schedule VALUES ('main', 0, 0)`); err != nil {
		t.Fatal(err)
	}
	pooler := backends.StartPgBouncer(t, server, "transaction").URL()
	leads := make(chan *scheduler, 3)
	for _, name := range []string{"a", "b", "c"} {
		s := &scheduler{Cmd: program(t, pooler+"&ttl=2s", "scheduler", "-database", pooler+"&default_query_exec_mode=exec", "-name", name, "-every", "50ms"), name: name}
		s.says = output(t, s.Cmd)
		start(t, s.Cmd)
		go func() { s.awaitTerm(leads) }()
	}
	next := func(before uint64) *scheduler {
		t.Helper()
		select {
		case s := <-leads:
			if s.token <= before {
				t.Errorf("%s leads with token %d after %d", s.name, s.token, before)
			}
			return s
		case <-time.After(time.Minute):
			t.Fatal("none leads")
			return nil
		}
	}
	first := next(0)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	second := next(first.token)
	awaitTurn(t, pool, second.token)
	if err := second.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	third := next(second.token)
	awaitTurn(t, pool, third.token)
	const unchecked = `UPDATE schedule SET turns = turns WHERE id = 'main'`
	for _, control := range []bool{false, true} {
		sql := unchecked + ` AND token <= $1`
		args := []any{int64(second.token)}
		if control {
			sql, args = unchecked, nil
		}
		done, err := pool.Exec(t.Context(), sql, args...)
		if err != nil || done.RowsAffected() == 1 != control {
			t.Errorf("with the stopped leader's token, control %t: %v rows, %v", control, done.RowsAffected(), err)
		}
	}
	if err := second.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	before := tokenOf(t, pool)
	awaitTurn(t, pool, third.token)
	if now := tokenOf(t, pool); now < before {
		t.Errorf("the row's token fell from %d to %d", before, now)
	}
}

type scheduler struct {
	*exec.Cmd
	name  string
	says  func(string) string
	token uint64
}

func (s *scheduler) awaitTerm(leads chan<- *scheduler) {
	name, token, _ := strings.Cut(s.says("leading"), " ")
	s.name = name
	s.token, _ = strconv.ParseUint(token, 10, 64) // 0 fails the test
	leads <- s
}

func tokenOf(t *testing.T, pool *pgxpool.Pool) (token uint64) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), `SELECT token FROM schedule`).Scan(&token); err != nil {
		t.Fatal(err)
	}
	return token
}

// awaitTurn waits until the leader with the token has done a turn from here on.
func awaitTurn(t *testing.T, pool *pgxpool.Pool, token uint64) {
	t.Helper()
	var began int64
	for i := 0; ; i++ {
		var turns int64
		var now uint64
		if err := pool.QueryRow(t.Context(), `SELECT turns, token FROM schedule`).Scan(&turns, &now); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			began = turns
		}
		if now == token && turns > began {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
