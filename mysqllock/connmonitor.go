package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
)

// monitoredConn is a connection whose end is noticed when it happens and not when it is next used:
// a lock that is bound to it has ended with it.
//
// The client library cannot report it. So once a lock has been held for readAfter, a goroutine, the
// reader, reads from the socket, and stops whenever the library uses it. Two that read at once
// would take data from each other; one that always reads, and hands on what the library asks for,
// costs each answer the way through a second goroutine.
type monitoredConn struct {
	net.Conn

	mu     sync.Mutex
	onLost func()        // set while a lock depends on the connection
	timer  *time.Timer   // starts the reader
	busy   bool          // the library is using the connection
	reader chan struct{} // closed when the reader has stopped; nil: there is none
	data   []byte        // what the reader has read, which the library gets first
	err    error         // with which the reader ended: the end of the connection

	onClose func()
}

// readAfter is how long after its last use a connection is read from: most locks are released
// sooner. A loss is to be told within 50 ms.
const readAfter = 20 * time.Millisecond

// readMost bounds what is kept of a server that sends without being asked.
const readMost = 64 << 10

func newMonitoredConn(c net.Conn) *monitoredConn {
	a := &monitoredConn{Conn: c}
	a.timer = time.AfterFunc(readAfter, a.readAhead)
	a.timer.Stop()
	return a
}

// readAhead reads until the connection ends, at this side or the other, or the library uses it.
func (a *monitoredConn) readAhead() {
	a.mu.Lock()
	if a.onLost == nil || a.busy || a.reader != nil || a.err != nil {
		a.mu.Unlock()
		return // the timer fired while it was being stopped
	}
	stopped := make(chan struct{})
	a.reader = stopped
	a.mu.Unlock()
	var data []byte // a server may say why, before it ends the connection
	var err error
	for buf := make([]byte, 512); err == nil && len(data) < readMost; {
		var n int
		n, err = a.Conn.Read(buf)
		data = append(data, buf[:n]...)
	}
	var lost func()
	a.mu.Lock()
	a.data, a.reader = append(a.data, data...), nil
	if err != nil && !timedOut(err) {
		a.err, lost = err, a.onLost
	}
	a.mu.Unlock()
	close(stopped)
	if lost != nil {
		lost()
	}
}

// timedOut reports that the reader was interrupted.
func timedOut(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// use keeps the reader away for one call of the library's, and interrupts it if it reads. The
// deadline is ours to set: no configuration of ours has the library set one.
func (a *monitoredConn) use() (done func()) {
	a.mu.Lock()
	a.busy = true
	reader := a.reader
	a.mu.Unlock()
	if reader != nil {
		_ = a.Conn.SetReadDeadline(time.Unix(1, 0)) // an error says that it is closed, which ends the reader too
		<-reader
		_ = a.Conn.SetReadDeadline(time.Time{})
	}
	return a.used
}

func (a *monitoredConn) used() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.busy = false
	if a.onLost != nil {
		a.timer.Reset(readAfter)
	}
}

func (a *monitoredConn) Read(p []byte) (int, error) {
	defer a.use()()
	a.mu.Lock()
	n, err := copy(p, a.data), a.err
	a.data = a.data[n:]
	a.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	if err != nil {
		return 0, err
	}
	return a.Conn.Read(p)
}

func (a *monitoredConn) Write(p []byte) (int, error) {
	defer a.use()()
	return a.Conn.Write(p)
}

// Close ends the reader as well.
func (a *monitoredConn) Close() error {
	err := a.Conn.Close()
	a.mu.Lock()
	closed := a.onClose
	a.mu.Unlock()
	if closed != nil {
		closed()
	}
	return err
}

// SyscallConn gives the client library the socket: before it uses a connection that was idle, it
// looks whether it has ended. Without the socket it does not look, and after a restart of the
// server a request would fail for each idle connection.
func (a *monitoredConn) SyscallConn() (syscall.RawConn, error) {
	c, ok := a.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	raw, err := c.SyscallConn()
	return socket{raw, a}, err
}

// socket keeps the reader away while the library looks. What the reader has read belongs to no
// answer: nothing was asked.
type socket struct {
	syscall.RawConn
	conn *monitoredConn
}

var errUnasked = errors.New("the server has sent what was not asked for")

func (s socket) Read(look func(fd uintptr) (done bool)) error {
	defer s.conn.use()()
	s.conn.mu.Lock()
	read, err := len(s.conn.data), s.conn.err
	s.conn.mu.Unlock()
	switch {
	case err != nil:
		return err
	case read > 0:
		return errUnasked
	}
	return s.RawConn.Read(look)
}

// watch has fn called when the connection ends; nil ends that. It reports false if it is
// known to have ended already.
func (a *monitoredConn) watch(fn func()) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onLost = fn
	if fn == nil {
		a.timer.Stop()
	} else {
		a.timer.Reset(readAfter)
	}
	return a.err == nil
}

// connMonitors makes monitored connections, and finds them again by what a *sql.Conn has.
type connMonitors struct {
	sqldriver.Connector
	conns sync.Map // sqldriver.Conn to *monitoredConn
}

type dialedKey struct{}

// newConnMonitors wraps the configuration's way to dial; the configuration must not be used
// otherwise.
func newConnMonitors(cfg *mysql.Config) (*connMonitors, error) {
	d := &net.Dialer{Timeout: cfg.Timeout}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		a := newMonitoredConn(c)
		if dialed, ok := ctx.Value(dialedKey{}).(**monitoredConn); ok {
			*dialed = a
		}
		return a, nil
	}
	c, err := mysql.NewConnector(cfg)
	return &connMonitors{Connector: connector{c, cfg}}, err
}

// Connect remembers which socket belongs to a connection, until the library closes it, as it
// does with every connection that it gives up.
func (s *connMonitors) Connect(ctx context.Context) (sqldriver.Conn, error) {
	var a *monitoredConn
	c, err := s.Connector.Connect(context.WithValue(ctx, dialedKey{}, &a))
	if err == nil && a != nil {
		a.mu.Lock()
		a.onClose = func() { s.conns.Delete(c) }
		a.mu.Unlock()
		s.conns.Store(c, a)
	}
	return c, err
}

// of is the monitor of a connection; nil if it has ended. On a pool of the user's there are none,
// and the renewals' pings must do.
func (s *connMonitors) of(c *sql.Conn) (m *monitoredConn) {
	if s == nil {
		return nil
	}
	_ = c.Raw(func(conn any) error {
		if v, ok := s.conns.Load(conn); ok {
			m = v.(*monitoredConn)
		}
		return nil
	})
	return m
}
