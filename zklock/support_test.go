package zklock

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
)

const patience = testkit.Patience // for what must come

// calm is a session that neither a busy machine ends nor pings or renewals of which fall into a
// count: the library pings in a third of it.
const calm = 10 * time.Minute

// patient opens a store whose server may greet late: there is no other, on a busy machine.
func patient(t testing.TB, o *Options, servers ...string) *backend {
	t.Helper()
	var with Options
	if o != nil {
		with = *o
	}
	if with.ConnectTimeout == 0 && len(servers) == 1 {
		with.ConnectTimeout = 5 * defaultConnectTimeout
	}
	b, err := open(servers, &with)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// site is a client of hasp on its own network.
type site struct {
	*hasp.Client
	b   *backend
	net []*faultnet.Proxy // one to each server
}

func newSite(t testing.TB, ttl time.Duration, o *Options, servers ...*backends.ZooKeeper) *site {
	t.Helper()
	s := &site{}
	var hosts []string
	for _, z := range servers {
		p := testkit.Proxy(t, z.Addr)
		s.net = append(s.net, p)
		hosts = append(hosts, p.Addr())
	}
	s.b = patient(t, o, hosts...)
	var err error
	if s.Client, err = hasp.New(s.b, hasp.WithTTL(ttl)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *site) lock(t testing.TB, name string) *hasp.Lease {
	t.Helper()
	return testkit.Lock(t, s.Client, name)
}

// queue begins to wait and returns when the entry is in the queue.
func (s *site) queue(t testing.TB, name string) <-chan *hasp.Lease {
	t.Helper()
	n := len(s.entries(t, name))
	got := testkit.Locking(t, s.Client, name)
	testkit.Eventually(t, "the waiter's entry", func() bool { return len(s.entries(t, name)) > n })
	return got
}

func (s *site) entries(t testing.TB, name string) []driver.Entry {
	t.Helper()
	es, err := s.b.List(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	return es
}

func (s *site) conn(t testing.TB) *conn {
	t.Helper()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	if len(s.b.conns) != 1 {
		t.Fatalf("%d live sessions, want one", len(s.b.conns))
	}
	return s.b.conns[0]
}

// lost waits until a lease is lost for this reason and returns how long that took.
func lost(t testing.TB, l *hasp.Lease, reason hasp.Reason) time.Duration {
	t.Helper()
	began := time.Now()
	testkit.Lost(t, l, reason)
	return time.Since(began)
}

// believed waits until a lease has expired and demands that it was to do so by then. It is
// the deadline that must be right: a busy machine may tell of it late.
func believed(t testing.TB, l *hasp.Lease, by time.Time) {
	t.Helper()
	lost(t, l, hasp.ReasonExpired)
	if d := l.Deadline(); d.After(by) {
		t.Errorf("believed for %s too long", d.Sub(by))
	}
}

// admin is a plain client of the library, on no proxy.
func admin(t testing.TB, z *backends.ZooKeeper) *zk.Conn {
	t.Helper()
	return connect(t, z.Addr)
}

func connect(t testing.TB, addr string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect([]string{addr}, calm, zk.WithLogger(discardLogger{}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for ev := range events {
		if ev.State == zk.StateHasSession {
			break
		}
	}
	return c
}

// expire ends a conn's session as its own id and password allow anybody to: from a second
// connection, which takes it over and closes it. Both requests are sent at once, and yet the
// library, which connects again, may take the session back in between: then once more.
func expire(t testing.TB, z *backends.ZooKeeper, c *conn) {
	t.Helper()
	id, password := uint64(c.zk.SessionID()), reflect.ValueOf(c.zk).Elem().FieldByName("passwd").Bytes()
	b := make([]byte, 12) // version, last zxid
	b = binary.BigEndian.AppendUint32(b, 10_000)
	b = binary.BigEndian.AppendUint64(b, id)
	b = binary.BigEndian.AppendUint32(b, uint32(len(password)))
	b = append(b, password...)
	requests := append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...)
	requests = append(requests, 0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xf5) // xid 1, type -11
	testkit.Eventually(t, "the end of the session", func() bool {
		n, err := net.Dial("tcp", z.Addr)
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		if _, err := n.Write(requests); err != nil {
			return false
		}
		reply := make([]byte, 40+20)
		got, _ := io.ReadFull(n, reply)
		// The server says 0 when there is no such session any more.
		return got == len(reply) || got >= 40 && binary.BigEndian.Uint64(reply[12:]) == 0
	})
}

// number reads one of the server's own.
func number(t testing.TB, z *backends.ZooKeeper, key string) int {
	t.Helper()
	reply, err := z.Ask("mntr")
	if err != nil {
		t.Fatal(err)
	}
	f, err := strconv.ParseFloat(parseTable(reply, "\t")[key], 64)
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return int(f)
}

func openSession(t testing.TB, b *backend, ttl time.Duration) *session {
	t.Helper()
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: ttl, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		s.Close(ctx)
	})
	return s.(*session)
}

// put makes a node in a lock's own, as another program would.
func (s *site) put(t testing.TB, a *zk.Conn, name, node string, data []byte, flags int32) (path string) {
	t.Helper()
	parent, _ := s.b.opts.path(name)
	var err error
	for range 3 {
		if path, err = a.Create(parent+"/"+node, data, flags, zk.WorldACL(zk.PermAll)); err == nil {
			return path
		}
		if !errors.Is(err, zk.ErrNoNode) {
			break
		}
		testkit.Release(t, s.lock(t, name)) // the server has removed the container, which was empty
	}
	t.Fatal(err)
	return ""
}

func uniqueName(t testing.TB) string {
	return strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + fmt.Sprint(time.Now().UnixNano())
}
