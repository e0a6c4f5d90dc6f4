package drivertest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

func TestMain(m *testing.M) { Main(m) }

// TestRemote runs the suite as a driver of a real server does: in real time, with leases,
// other processes and a network that can be cut. The server is memlock behind a socket.
func TestRemote(t *testing.T) {
	Run(t, remoteHarness(t, dial, "drivertest"))
}

// TestRemoteControls is TestControls for flaws that only real time and processes can show.
func TestRemoteControls(t *testing.T) {
	boastful := remoteHarness(t, dialBoastful, "drivertest-boastful")
	apart := Harness{
		URL: "mem://drivertest-control", // each process has a separate store
		TTL: time.Second,
		Open: func(t testing.TB) driver.Backend {
			return memlock.New().Backend()
		},
	}
	for _, c := range []struct {
		name string
		h    Harness
		seen string
	}{
		{"lets a stopped process believe", boastful, "Process/StopHolder"},
		{"lets a process that is cut off believe", boastful, "Loss/BeforeRegrant"},
		{"shares nothing between processes", apart, "Process/Counter"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if r := runTest(t, find(t, c.seen), c.h); !r.failed {
				t.Errorf("%s did not notice; it said: %q", c.seen, textsOf(r))
			}
		})
	}
}

func init() {
	for scheme, dial := range map[string]func(string) (*remote, error){"drivertest": dial, "drivertest-boastful": dialBoastful} {
		driver.Register(scheme, func(_ context.Context, u *url.URL) (driver.Backend, error) { return dial(u.Path) })
	}
}

func remoteHarness(t *testing.T, dial func(path string) (*remote, error), scheme string) Harness {
	path := filepath.Join(t.TempDir(), "store")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	server := &Server{store: memlock.New().Backend(), sessions: map[string]*served{}, waits: map[string]context.CancelFunc{}}
	r := rpc.NewServer()
	if err := r.Register(server); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go r.ServeConn(conn)
		}
	}()
	return Harness{
		Open: func(t testing.TB) driver.Backend {
			b, err := dial(path)
			if err != nil {
				t.Fatal(err)
			}
			return b
		},
		URL: scheme + "://" + path,
		TTL: 500 * time.Millisecond,
		Ops: server.calls.Load,
		Cut: func(_ testing.TB, b driver.Backend) func() {
			c := b.(*remote).conn
			c.cut()
			return c.heal
		},
	}
}

// remote is the near side.
type remote struct {
	conn  *severable
	rpc   *rpc.Client
	next  atomic.Int64
	boast time.Duration // the extra time that it promises beyond the server's
}

// severable delivers nothing while it is cut, and everything later.
type severable struct {
	net.Conn
	link
	ended context.Context
	end   context.CancelFunc
}

func (c *severable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if lost := c.pass(c.ended); lost != nil {
		return 0, lost
	}
	return n, err
}

func (c *severable) Write(b []byte) (int, error) {
	if err := c.pass(c.ended); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *severable) Close() error {
	c.end()
	return c.Conn.Close()
}

func dial(path string) (*remote, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	c := &severable{Conn: conn}
	c.ended, c.end = context.WithCancel(context.Background())
	return &remote{conn: c, rpc: rpc.NewClient(c)}, nil
}

// dialBoastful makes a driver that promises an hour more than the store does.
func dialBoastful(path string) (*remote, error) {
	b, err := dial(path)
	if err == nil {
		b.boast = time.Hour
	}
	return b, err
}

// call makes a request. Sending happens beside it, since a write to a cut line blocks.
func (b *remote) call(ctx context.Context, method string, q Ask) (Answer, error) {
	if err := ctx.Err(); err != nil {
		return Answer{}, err
	}
	var a Answer
	done := make(chan error, 1)
	go func() { done <- b.rpc.Call("Server."+method, q, &a) }()
	select {
	case err := <-done:
		switch {
		case err != nil:
			return Answer{}, err
		case a.Gone:
			return a, driver.ErrGone
		case a.Found != 0:
			return a, &driver.MismatchError{Name: q.Request.Name, Want: q.Request.Capacity, Found: a.Found}
		case a.Text != "":
			return a, errors.New(a.Text)
		}
		return a, nil
	case <-ctx.Done():
		return Answer{}, ctx.Err()
	}
}

func (b *remote) unique() string {
	return fmt.Sprintf("%p-%d-%d", b, time.Now().UnixNano(), b.next.Add(1))
}

func (b *remote) String() string { return "drivertest://" }

func (b *remote) Traits() driver.Traits {
	return driver.Traits{FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: true}
}

func (b *remote) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s := &remoteSession{b, b.unique()}
	a, err := b.call(ctx, "Open", Ask{Session: s.id, TTL: o.TTL})
	return s, a.Granted + b.boast, err
}

func (b *remote) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	a, err := b.call(ctx, "List", Ask{Request: driver.Request{Name: name}})
	return driver.First(a.Entries, limit), err
}

func (b *remote) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	a, err := b.call(ctx, "Names", Ask{Request: driver.Request{Name: prefix}})
	for _, n := range a.Names {
		if !yield(n) {
			break
		}
	}
	return err
}

func (b *remote) Close() error { return b.rpc.Close() }

type remoteSession struct {
	b  *remote
	id string
}

func (s *remoteSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	a, err := s.b.call(ctx, "KeepAlive", Ask{Session: s.id})
	return a.Granted + s.b.boast, err
}

func (s *remoteSession) Close(ctx context.Context) error {
	_, err := s.b.call(ctx, "CloseSession", Ask{Session: s.id})
	return err
}

func (s *remoteSession) Ticket(r driver.Request) driver.Ticket {
	return &remoteTicket{s.b, Ask{Session: s.id, Request: r}}
}

type remoteTicket struct {
	b *remote
	q Ask
}

func (t *remoteTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	a, err := t.b.call(ctx, "Enqueue", t.q)
	return a.Verdict, err
}

func (t *remoteTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	q := t.q
	q.Wait = t.b.unique()
	a, err := t.b.call(ctx, "Wait", q)
	if ctx.Err() != nil {
		go t.b.rpc.Call("Server.CallOff", q, &Answer{}) // or it waits until the entry leaves
	}
	return a.Verdict, err
}

func (t *remoteTicket) Leave(ctx context.Context) error {
	_, err := t.b.call(ctx, "Leave", t.q)
	return err
}

func (t *remoteTicket) Publish(ctx context.Context, value []byte) error {
	q := t.q
	q.Request.Value = value
	_, err := t.b.call(ctx, "Publish", q)
	return err
}
