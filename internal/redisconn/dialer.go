package redisconn

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The pause between attempts to reach a server that could not be reached. Every request
// on a dead connection dials; a thousand of them must not be a thousand dials (L7).
const (
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// proven is how long a connection must have lasted for the next to be dialled at once. A
// server that is full or starting takes connections and drops them.
const proven = time.Second

// dialer opens connections, knows those that are open, and spaces the attempts.
type dialer struct {
	mu      sync.Mutex
	open    map[*conn]struct{}
	refused map[string]refusal // by address

	dialing map[*context.CancelFunc]string // the address

	// broke is called when a connection fails or is closed.
	broke func()
}

func newDialer(broke func()) *dialer {
	return &dialer{
		open: map[*conn]struct{}{}, refused: map[string]refusal{},
		dialing: map[*context.CancelFunc]string{}, broke: broke,
	}
}

// refusal is when a server that could not be reached is dialled again.
type refusal struct {
	pause time.Duration
	until time.Time
}

// dial has the type of rueidis.ClientOption.DialCtxFn.
func (d *dialer) dial(ctx context.Context, addr string, nd *net.Dialer, tc *tls.Config) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	d.dialing[&cancel] = addr
	pause := time.Until(d.refused[addr].until)
	d.mu.Unlock()

	c, err := dialAfter(ctx, pause, addr, nd, tc)

	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.dialing, &cancel)
	if err != nil {
		d.failedLocked(addr)
		return nil, err
	}
	t := &conn{Conn: c, dialer: d, addr: addr, since: time.Now()}
	d.open[t] = struct{}{}
	return t, nil
}

// failedLocked lengthens the pause, unless it is on: connections that a server drops
// together count once.
func (d *dialer) failedLocked(addr string) {
	if time.Now().Before(d.refused[addr].until) {
		return
	}
	pause := min(max(2*d.refused[addr].pause, firstPause), mostPause)
	d.refused[addr] = refusal{pause: pause, until: time.Now().Add(pause)}
}

// dialAfter dials when the pause is over. The request behind it is late then, which is
// better than failed: it may be the first in a while and know nothing of the trouble.
func dialAfter(ctx context.Context, pause time.Duration, addr string, nd *net.Dialer, tc *tls.Config) (net.Conn, error) {
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if tc != nil {
		return (&tls.Dialer{NetDialer: nd, Config: tc}).DialContext(ctx, "tcp", addr)
	}
	return nd.DialContext(ctx, "tcp", addr)
}

// closeAll ends the connections of the moment, and those in the making.
func (d *dialer) closeAll() { d.close("") }

// close ends the connections to one address and those in the making to it, or all. An address
// without a host is what a server calls itself that does not know its own, or is told to keep it
// to itself: clients then go to the host that they have come from.
func (d *dialer) close(addr string) {
	meant := func(to string) bool {
		return addr == "" || to == addr || addr[0] == ':' && strings.HasSuffix(to, addr)
	}
	d.mu.Lock()
	conns := make([]*conn, 0, len(d.open))
	for c := range d.open {
		if meant(c.addr) {
			conns = append(conns, c)
		}
	}
	for cancel, to := range d.dialing {
		if meant(to) {
			(*cancel)()
		}
	}
	d.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // the peer is silent: it gets no farewell
	}
}

// conn tells its dialer when it ends.
type conn struct {
	net.Conn
	dialer *dialer
	addr   string
	since  time.Time
	failed atomic.Bool // from the other side; rueidis also closes connections it has no use for
	ended  atomic.Bool // by Close, and not a byte can be written any more
}

// errEnded is the error of a write of which nothing was sent, because we had closed the
// connection before. It is a dead one found, and says nothing about the server.
var errEnded = errors.New("the connection was closed to be dialled anew")

func (c *conn) Write(p []byte) (int, error) {
	if c.ended.Load() {
		return 0, errEnded
	}
	return c.Conn.Write(p)
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			c.failed.Store(true)
		}
		c.dialer.broke()
	}
	return n, err
}

func (c *conn) Close() error {
	c.ended.Store(true)
	c.dialer.closed(c)
	c.dialer.broke()
	return c.Conn.Close()
}

func (d *dialer) closed(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, first := d.open[c]; !first {
		return // rueidis closes from several sides
	}
	delete(d.open, c)
	switch lasted := time.Since(c.since) >= proven; {
	case lasted:
		delete(d.refused, c.addr)
	case c.failed.Load():
		d.failedLocked(c.addr)
	}
}
