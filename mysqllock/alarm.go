package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"net"
	"sync"

	"github.com/go-sql-driver/mysql"
)

// alarmed is a connection that somebody always reads from, so that its end is noticed when
// it happens and not when it is next used: a lock that is bound to it has ended with it.
//
// The client library has no place to ask for that, and reading beside it on the same socket
// would take away what it waits for. So one goroutine reads, and the library is served from
// what has been read.
type alarmed struct {
	net.Conn

	mu     sync.Mutex
	news   *sync.Cond
	data   []byte
	err    error  // what reading ended with
	onLost func() // called once, if it is set when the reading ends
}

// readAhead bounds what is kept for a library that does not fetch it.
const readAhead = 64 << 10

func newAlarmed(c net.Conn) *alarmed {
	a := &alarmed{Conn: c}
	a.news = sync.NewCond(&a.mu)
	go a.pump()
	return a
}

// pump reads until the connection ends, at this side or the other.
func (a *alarmed) pump() {
	buf := make([]byte, 16<<10)
	for {
		n, err := a.Conn.Read(buf)
		a.mu.Lock()
		a.data = append(a.data, buf[:n]...)
		a.err = err
		lost := a.onLost
		a.news.Broadcast()
		for err == nil && len(a.data) > readAhead {
			a.news.Wait()
		}
		a.mu.Unlock()
		if err != nil {
			if lost != nil {
				lost()
			}
			return
		}
	}
}

func (a *alarmed) Read(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.data) == 0 && a.err == nil {
		a.news.Wait()
	}
	if len(a.data) == 0 {
		return 0, a.err
	}
	n := copy(p, a.data)
	if a.data = a.data[n:]; len(a.data) == 0 {
		a.data = nil
	}
	a.news.Broadcast()
	return n, nil
}

// Close ends the pump, which may wait for somebody to fetch what it has read.
func (a *alarmed) Close() error {
	err := a.Conn.Close()
	a.mu.Lock()
	a.data = nil
	a.news.Broadcast()
	a.mu.Unlock()
	return err
}

// watch has fn called when the connection ends; nil ends that. It reports false if it has
// ended already.
func (a *alarmed) watch(fn func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onLost = fn
	return a.err == nil
}

// alarms makes connections that are alarmed, and finds them again by what a *sql.Conn has.
type alarms struct {
	sqldriver.Connector
	conns sync.Map // sqldriver.Conn to *alarmed
}

type dialedKey struct{}

// newAlarms wraps the configuration's way to dial; the configuration must not be used
// otherwise.
func newAlarms(cfg *mysql.Config) (*alarms, error) {
	d := &net.Dialer{Timeout: cfg.Timeout}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		a := newAlarmed(c)
		if dialed, ok := ctx.Value(dialedKey{}).(**alarmed); ok {
			*dialed = a
		}
		return a, nil
	}
	c, err := mysql.NewConnector(cfg)
	return &alarms{Connector: c}, err
}

// Connect remembers which socket belongs to a connection, for as long as the socket lives.
func (s *alarms) Connect(ctx context.Context) (sqldriver.Conn, error) {
	var a *alarmed
	c, err := s.Connector.Connect(context.WithValue(ctx, dialedKey{}, &a))
	if err == nil && a != nil {
		s.conns.Store(c, a)
		if !a.watch(func() { s.conns.Delete(c) }) {
			s.conns.Delete(c)
		}
	}
	return c, err
}

// set has fn called when the connection ends, from a goroutine of the connection's; nil has
// nobody called. It reports false if the connection has ended already. On a pool of the
// user's there is no alarm, and the renewals' pings must do.
func (s *alarms) set(c *sql.Conn, fn func()) (standing bool) {
	if s == nil {
		return true
	}
	err := c.Raw(func(conn any) error {
		v, ok := s.conns.Load(conn)
		if !ok {
			return nil
		}
		forget := func() { s.conns.Delete(conn) }
		standing = v.(*alarmed).watch(func() {
			forget()
			if fn != nil {
				fn()
			}
		})
		return nil
	})
	return err == nil && standing
}
