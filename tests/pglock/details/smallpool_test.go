package pglock_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// pooled is a pool of the test's own with so many connections to the server.
func pooled(t *testing.T, server *backends.Postgres, mode, size string) *backends.PgBouncer {
	t.Helper()
	pool := backends.StartPgBouncer(t, server, mode)
	sqlkit.Postgres(t, strings.Replace(pool.URL(), "/postgres?", "/pgbouncer?default_query_exec_mode=simple_protocol&", 1), "SET default_pool_size = "+size)
	return pool
}

// A pool that hands connections out for a transaction may have one that is free, or none for a
// while. What looks at it waits for no answer that such a pool cannot give: the store is opened,
// and works, or is refused by name.
func TestPoolWithOneFreeConnection(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, busy := range []int{0, 1} {
		pool := pooled(t, server, "transaction", map[int]string{0: "1", 1: "2"}[busy])
		for range busy { // another client's, in an open transaction
			conn, err := pgx.Connect(t.Context(), pool.URL())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "BEGIN; SELECT 1"); err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
		}
		c := client(t, pool.URL())
		testkit.Release(t, testkit.Lock(t, c, "a"))
		_, err := hasp.Open(testkit.Context(t), sqlkit.With(pool.URL(), "strategy=advisory"))
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "for the time of a transaction") {
			t.Errorf("advisory: %v", err)
		}
	}
}

// A pool in transaction mode that greets with the number of the server's process: advisory would
// have two holders behind it, and refuses it; doctor names it to table, whose waiters would hear
// nothing.
func TestPoolThatGreetsAsTheServer(t *testing.T) {
	t.Parallel()
	server := private(t)
	pool := pooled(t, server, "transaction", "1")
	addr := greeting(t, pool.Addr, uint32(ask[int](t, unprepared(pool.URL()), "SELECT pg_backend_pid()")))
	disguised := strings.Replace(pool.URL(), pool.Addr, addr, 1)
	conn, err := pgx.Connect(t.Context(), disguised)
	if err != nil {
		t.Fatal(err)
	}
	if pid := uint32(ask[int](t, unprepared(disguised), "SELECT pg_backend_pid()")); pid != conn.PgConn().PID() {
		t.Fatalf("it greets with %d and answers with %d: this tests nothing", conn.PgConn().PID(), pid)
	}
	conn.Close(t.Context())
	for _, params := range []string{"strategy=advisory", "strategy=advisory&fence=off"} {
		_, err := hasp.Open(testkit.Context(t), sqlkit.With(disguised, params))
		if !errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "for the time of a transaction") {
			t.Errorf("%s: %v", params, err)
		}
	}
	testkit.WantFinding(t, findings(t, disguised), "pooler", driver.Bad, "greets as the server does")
	testkit.WantFinding(t, findings(t, server.URL()), "pooler", driver.Info, "none")
}

func unprepared(serverURL string) string {
	return sqlkit.With(serverURL, "default_query_exec_mode=exec")
}

// greeting is the address of a proxy that greets clients with this number of the server's process.
func greeting(t *testing.T, to string, pid uint32) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			go func() { defer s.Close(); _, _ = io.Copy(s, c) }()
			go func() {
				defer c.Close()
				keyData := []byte{'K', 0, 0, 0, 12}
				for greeted := false; ; {
					buf := make([]byte, 16<<10)
					n, err := s.Read(buf)
					if i := bytes.Index(buf[:n], keyData); !greeted && i >= 0 { // with the rest of the greeting
						binary.BigEndian.PutUint32(buf[i+len(keyData):], pid)
						greeted = true
					}
					if _, failed := c.Write(buf[:n]); err != nil || failed != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// A pool with no room, or of a kind that no strategy works behind, is named, with what to do.
func TestPoolIsNamed(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, x := range []struct{ mode, size, want, cure string }{
		{"session", "1", "pool", "default_pool_size"},
		{"statement", "20", "statement mode", "pool_mode"},
		{"statement", "1", "statement mode", "pool_mode"},
	} {
		pool := pooled(t, server, x.mode, x.size)
		for _, strategy := range []string{"table", "advisory"} {
			began := time.Now()
			c, err := hasp.Open(testkit.Context(t), sqlkit.With(pool.URL(), "strategy="+strategy))
			if err == nil {
				c.Close()
			}
			if err == nil || !strings.Contains(err.Error(), x.want) || !strings.Contains(err.Error(), x.cure) {
				t.Errorf("%s mode, %s connections, %s: %v", x.mode, x.size, strategy, err)
			}
			t.Logf("%s mode, %s connections, %s: after %s: %v", x.mode, x.size, strategy, time.Since(began), err)
		}
	}
}
