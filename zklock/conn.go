package zklock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// conn is one ZooKeeper session, on one TCP connection after the other, and the only place
// where the client library is opened and closed. What is worked around here:
//
//   - Its calls block and take no context: call runs each on a separate goroutine.
//   - After an expiry it opens another session by itself, and everything still queued
//     would be done in that. Here a conn ends with its session: the dialer refuses to
//     connect again.
//   - Its event channel drops what is not read in time; its callback does not.
//   - It cannot remove a watch; see watchtable.go.
type conn struct {
	zk    *zk.Conn
	dial  *dialer
	asked time.Duration
	lost  func(error) // called once when the session has expired; may be nil

	identity digest // of this session alone; see nodeACL

	ended  chan struct{} // closed with the session; endErr is set before
	failed chan struct{} // closed when each server was tried and there has been no connection

	watches  watchTable
	pending  sync.Map       // *pendingCreate by path: those whose request and answer the monitor looks for
	lastZxid atomic.Int64   // of the answers, on all connections
	creating sync.WaitGroup // the library's CreateContainer; none begins after the end

	mu            sync.Mutex
	endErr        error
	ready         chan struct{} // closed while there is a connection
	up            bool
	everConnected bool         // there has been one
	unreachable   bool         // failed is closed
	monitor       *connMonitor // the current TCP connection; nil before the first

	continued bootclock.Instant // when the connection that is up was about to ask for the session

	granted time.Duration // the least so far
	shorter func(asked time.Time, granted time.Duration)
}

// sendBuffer is the size of the library's buffer for requests: ours have a few KB, its own
// list of watches after a reconnection up to 128 KB in one. Its default is 1.5 MB a client.
const sendBuffer = 256 << 10

// openConn returns when there is a session, when each server has been tried without success, or
// with ctx.
func openConn(ctx context.Context, o *Options, servers []string, ttl time.Duration, lost func(error)) (*conn, error) {
	c := &conn{
		asked: ttl, lost: lost,
		ended: make(chan struct{}), ready: make(chan struct{}), failed: make(chan struct{}),
	}
	c.watches.init()
	c.dial = newDialer(o, servers, c)
	// The library sends the milliseconds as an int32, and more would become negative. No server
	// grants as much.
	client, _, err := zk.Connect(servers, min(ttl, math.MaxInt32*time.Millisecond),
		zk.WithDialer(c.dial.dial), zk.WithHostProvider(c.dial), zk.WithEventCallback(c.event),
		zk.WithLogger(discardLogger{}), zk.WithLogInfo(false), zk.WithMaxConnBufferSize(sendBuffer))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	c.mu.Lock() // the library is at work already and may call event
	c.zk = client
	c.mu.Unlock()
	select {
	case <-c.whenReady():
	case <-c.failed:
		_, last := c.dial.tried()
		err = fmt.Errorf("cannot connect to any server; the last one: %w", last)
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil && o.User != "" {
		err = c.authenticate(ctx, digest{o.User, o.Password})
	}
	if err == nil && o.Strategy == StrategyNode {
		c.identity = digest{"hasp-" + rand.Text(), rand.Text()}
		err = c.authenticate(ctx, c.identity)
	}
	if err != nil {
		c.abandon() // a session that opens meanwhile has no entries; it expires
		return nil, err
	}
	return c, nil
}

// digest is an identity that a connection proves by a password.
type digest struct{ user, password string }

// authenticate adds an identity. The library repeats that on each connection, before any
// other request.
func (c *conn) authenticate(ctx context.Context, d digest) error {
	err := c.do(ctx, func() error { return c.zk.AddAuth("digest", []byte(d.user+":"+d.password)) })
	return explain("authenticate", err)
}

// noteUnreachable ends the wait for the first connection when all servers have been tried.
func (c *conn) noteUnreachable() {
	all, _ := c.dial.tried()
	c.mu.Lock()
	defer c.mu.Unlock()
	if all && !c.everConnected && !c.unreachable {
		c.unreachable = true
		close(c.failed)
	}
}

// attach makes a connection the current one, unless the session is over.
func (c *conn) attach(t *connMonitor) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.monitor = t
	return c.endErr == nil
}

func (c *conn) timeout() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.granted
}

// connectedAt is when this connection asked the servers for the session, or for its
// continuation.
func (c *conn) connectedAt() bootclock.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.continued
}

// trackCreate has the monitor look for the create of a path that only this session creates.
func (c *conn) trackCreate(path string) *pendingCreate {
	f := &pendingCreate{sent: make(chan struct{})}
	c.pending.Store(path, f)
	return f
}

// breakConnection closes the current connection, so that the library tries the next server. For a
// connection that is up and does not answer: the library would give it two thirds of the
// session timeout, and too little would be left.
func (c *conn) breakConnection() {
	c.mu.Lock()
	t := c.monitor
	c.mu.Unlock()
	if t != nil {
		_ = t.Close() // it is the library that will meet the error
	}
}

// end marks the session as over; every call and wait in it returns. Only the first end
// counts, and it alone returns true.
func (c *conn) end(err error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endErr != nil {
		return false
	}
	c.endErr = err
	close(c.ended)
	return true
}

// over returns why the session has ended, or nil.
func (c *conn) over() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.endErr
}

// shut ends the library and its connection. The session must have been ended; if it is
// alive on the server and can be reached, it is closed there, which removes its nodes.
//
// confirmed says that the server has answered. The library waits a second for that and does
// not report it; but it goes on reading, so that the monitor sees the answer of a slow server, or
// the end of the connection. After the session's timeout no answer can come any more.
func (c *conn) shut() (confirmed bool) {
	c.mu.Lock()
	client, t, up := c.zk, c.monitor, c.up
	c.mu.Unlock()
	if !up || !c.createsEnded(t) {
		c.drop() // nothing is worth connecting for
		return false
	}
	client.Close()
	timer := time.NewTimer(c.timeout())
	defer timer.Stop()
	select {
	case <-t.closed:
		confirmed = true
	case <-t.broken: // which follows the answer at once
		select {
		case <-t.closed:
			confirmed = true
		default:
		}
	case <-timer.C:
	}
	c.dial.cancel()
	c.breakConnection()
	return confirmed
}

// drop ends the library and its connection, and leaves the session to the servers.
func (c *conn) drop() {
	c.dial.cancel()
	c.breakConnection() // first: the library asks for a close where it can
	c.mu.Lock()
	client, t := c.zk, c.monitor
	c.mu.Unlock()
	if t != nil {
		c.createsEnded(t)
	}
	client.Close()
}

// beginCreate is called before CreateContainer, and creating.Done after it. See createsEnded.
func (c *conn) beginCreate() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endErr == nil {
		c.creating.Add(1)
	}
	return c.endErr
}

// createsEnded waits until the library can be closed, after the end: until no container is being
// created, or t is broken. Of all its calls CreateContainer alone looks at its answer when the
// library is closed meanwhile, and another goroutine may write it at that moment: a data race. It
// reports whether the server has answered within the session's timeout.
func (c *conn) createsEnded(t *connMonitor) bool {
	done := make(chan struct{})
	go func() { c.creating.Wait(); close(done) }()
	timer := time.NewTimer(c.timeout())
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-t.broken: // nothing reads an answer any more
	case <-timer.C:
	}
	return false
}

// abandon ends a session in which there is nothing. It does not wait.
func (c *conn) abandon() {
	if c.end(fmt.Errorf("%w: the session was closed", driver.ErrGone)) {
		go c.shut()
	}
}

// close closes the session on the server, within ctx. It waits for a connection if there
// is none: nodes that go with a close are gone at once, else only after the timeout.
func (c *conn) close(ctx context.Context) error {
	select {
	case <-c.whenReady():
	case <-c.ended:
		return nil // it has expired, or was closed before
	case <-ctx.Done():
	}
	if !c.end(fmt.Errorf("%w: the session was closed", driver.ErrGone)) {
		return nil
	}
	done := make(chan bool, 1) // one slot: the caller may have stopped waiting
	go func() { done <- c.shut() }()
	select {
	case confirmed := <-done:
		if !confirmed {
			return errors.New("close the session: no answer; it ends with its timeout")
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// whenReady is closed while there is a connection.
func (c *conn) whenReady() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ready
}

// discardLogger is the library's logger: a library does not write to standard error.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}
