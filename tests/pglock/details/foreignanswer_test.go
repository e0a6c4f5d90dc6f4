package pglock_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A pooler gives a client the answer to another. From then on each answer is that of the request
// before, so that a client could be told that it holds what was granted to another name. hasp
// notices, and does not use the connection again. The control is a client that trusts its
// connection.
func TestAnswersOfOthers(t *testing.T) {
	t.Parallel()
	server := backends.SharedPostgres(t)
	m := newForeignAnswers(t, server.Addr)
	through := func(params ...string) string {
		return strings.Replace(sqlkit.PostgresStore(t, params...), server.Addr, m.addr, 1)
	}
	m.next.Store(1)
	conn, err := pgx.Connect(t.Context(), strings.Replace(server.URL(), server.Addr, m.addr, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	first, second := answers(t, conn, 1), answers(t, conn, 2)
	if len(first) != 0 || len(second) != 1 || second[0] != 1 {
		t.Errorf("the control was answered %v and %v, want nothing and the answer to its first question", first, second)
	}

	for _, strategy := range []string{"table", "advisory"} {
		taken := testkit.Lock(t, client(t, sqlkit.PostgresStore(t, "strategy="+strategy)), "taken")
		m.next.Store(2) // the first two connections look at the server
		c := client(t, through("strategy="+strategy, "connections=1"))
		if m.next.Load() != 0 {
			t.Errorf("%s: only one connection has looked at the server", strategy)
		}
		m.next.Store(1) // the session's own, or a lock's
		testkit.Release(t, testkit.Lock(t, c, "not taken"))
		if m.next.Load() != 0 {
			t.Errorf("%s: no connection was muddled: this has tested nothing", strategy)
		}
		m.now()
		held := testkit.Lock(t, c, "not taken")
		if l, err := c.Mutex("taken").TryLock(testkit.Context(t)); err == nil {
			t.Fatalf("%s: two hold, with the tokens %d and %d", strategy, taken.Token(), l.Token())
		}
		testkit.Release(t, held)
		testkit.Release(t, taken)
		testkit.Release(t, testkit.Lock(t, c, "taken"))
	}
}

// What was left for somebody else can look like the answer to what we ask; its echo tells it.
// Here the grant of one client comes to all.
func TestGrantOfOthers(t *testing.T) {
	t.Parallel()
	server := backends.SharedPostgres(t)
	m := newForeignAnswers(t, server.Addr)
	for _, strategy := range []string{"table", "advisory"} {
		through := strings.Replace(sqlkit.PostgresStore(t, "strategy="+strategy, "connections=1"), server.Addr, m.addr, 1)
		taken := testkit.Lock(t, client(t, sqlkit.PostgresStore(t, "strategy="+strategy)), "taken by one")
		victim, other := client(t, through), client(t, through)
		for _, c := range []*hasp.Client{victim, other} {
			for range 2 { // the first time there is more in the answer
				l, err := c.Mutex("not taken by any").TryLock(testkit.Context(t))
				if err != nil {
					t.Fatal(err)
				}
				testkit.Release(t, l)
			}
		}
		m.again(t)
		if l, err := victim.Mutex("taken by one").TryLock(testkit.Context(t)); err == nil {
			t.Errorf("%s: two hold, with the tokens %d and %d", strategy, taken.Token(), l.Token())
		}
		testkit.Release(t, taken)
		testkit.Release(t, testkit.Lock(t, victim, "taken by one"))
	}
}

// answers asks for a number.
func answers(t *testing.T, conn *pgx.Conn, n int) []int {
	rows, err := conn.Query(t.Context(), "SELECT $1::int", pgx.QueryExecModeSimpleProtocol, n)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// foreignAnswers is a proxy that lets the end of another client's answer through to its clients.
type foreignAnswers struct {
	addr string
	next atomic.Int32 // so many connections begin with it

	mu      sync.Mutex
	clients []net.Conn
	grant   []byte // the last answer that was one, with all around it
}

// foreignAnswer is the end of it.
var foreignAnswer = []byte("C\x00\x00\x00\x10DISCARD ALL\x00Z\x00\x00\x00\x05I")

func newForeignAnswers(t *testing.T, server string) *foreignAnswers {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	m := &foreignAnswers{addr: listener.Addr().String()}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go m.pass(client, server)
		}
	}()
	return m
}

// now lets it through to all that are connected.
func (m *foreignAnswers) now() { m.tell(foreignAnswer) }

// again lets the last grant through to all.
func (m *foreignAnswers) again(t *testing.T) {
	m.mu.Lock()
	grant := m.grant
	m.grant = nil
	m.mu.Unlock()
	if grant == nil {
		t.Fatal("no grant has passed")
	}
	m.tell(grant)
}

func (m *foreignAnswers) tell(answer []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.clients {
		_, _ = c.Write(answer) // some are closed
	}
}

// Write notes a grant that passes: the answer to a prepared statement, "2", and a row of three
// columns or more. A release has two.
func (m *foreignAnswers) Write(answer []byte) (int, error) {
	if len(answer) > 12 && bytes.HasPrefix(answer, []byte("2\x00\x00\x00\x04D")) && binary.BigEndian.Uint16(answer[10:]) >= 3 {
		m.mu.Lock()
		m.grant = bytes.Clone(answer)
		m.mu.Unlock()
	}
	return len(answer), nil
}

func (m *foreignAnswers) pass(client net.Conn, addr string) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		server.Close()
	}()
	answers := bufio.NewReader(server)
	if !greet(client, answers) {
		return
	}
	m.mu.Lock()
	m.clients = append(m.clients, client)
	m.mu.Unlock()
	if m.next.Add(-1) >= 0 {
		_, _ = client.Write(foreignAnswer)
	} else {
		m.next.Store(0)
	}
	_, _ = io.Copy(io.MultiWriter(client, m), answers)
}

// greet passes on what the server says until it is ready for the first statement.
func greet(client io.Writer, answers *bufio.Reader) (ready bool) {
	for {
		head := make([]byte, 5) // kind, and length without the kind
		if _, err := io.ReadFull(answers, head); err != nil {
			return false
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(answers, body); err != nil {
			return false
		}
		if _, err := client.Write(append(head, body...)); err != nil {
			return false
		}
		if head[0] == 'Z' {
			return true
		}
	}
}
