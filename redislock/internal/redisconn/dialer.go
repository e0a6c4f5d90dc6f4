package redisconn

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver/tlsparams"
)

// The pause between attempts to dial a server that could not be reached. Every request on a dead
// connection dials; a thousand requests must not be a thousand dials (L7).
const (
	firstPause = 50 * time.Millisecond
	maxPause   = time.Second
)

// stableAfter is how long a connection must have lasted for the next one to be dialled at once. A
// server that is full or starting accepts connections and drops them.
const stableAfter = time.Second

// dialer opens connections, keeps track of them, and pauses between attempts.
type dialer struct {
	mu      sync.Mutex
	open    map[*conn]struct{}
	refused map[string]refusal // by address

	dialing map[*context.CancelFunc]string // the address

	// refusal has the first words of a server on the last connection, if they were an error:
	// rueidis forgets it if the server then closes the connection.
	refusal atomic.Value

	secure tlsparams.Params

	// onBroken is called when a connection fails or is closed.
	onBroken func()
}

func newDialer(broke func()) *dialer {
	return &dialer{
		open: map[*conn]struct{}{}, refused: map[string]refusal{},
		dialing: map[*context.CancelFunc]string{}, onBroken: broke,
	}
}

// refusal says when a server that could not be reached is dialled again.
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

	c, err := dialAfter(ctx, pause, addr, nd, d.secure.Fresh(tc))

	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.dialing, &cancel)
	if err != nil {
		d.failedLocked(addr)
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		// It was made just when close ran, and is in neither of the lists that close went through:
		// of a dial that close has ended none may remain, since a request on it would wait for a
		// silent server although its context has ended.
		go c.Close()
		return nil, err
	}
	t := &conn{Conn: c, dialer: d, addr: addr, since: time.Now()}
	d.open[t] = struct{}{}
	return t, nil
}

// failedLocked doubles the pause, unless one is running: connections that a server drops together
// count once.
func (d *dialer) failedLocked(addr string) {
	if time.Now().Before(d.refused[addr].until) {
		return
	}
	pause := min(max(2*d.refused[addr].pause, firstPause), maxPause)
	d.refused[addr] = refusal{pause: pause, until: time.Now().Add(pause)}
}

// dialAfter dials when the pause is over. The request that needs the connection waits and does
// not fail: it may be the first one since the server came back.
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

// close closes the connections to one address and those that are being dialled, or with "" all.
func (d *dialer) close(addr string) {
	meant := func(to string) bool { return addr == "" || to == addr }
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
		_ = c.Close() // without QUIT: the peer is silent
	}
}

// conn notifies its dialer when it ends.
type conn struct {
	net.Conn
	dialer *dialer
	addr   string
	since  time.Time
	failed atomic.Bool // by the peer; rueidis also closes connections that it does not need
	spoke  bool        // the peer has; one goroutine reads at a time
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.spoke {
		c.spoke = true
		if line, _, _ := bytes.Cut(p[:n], []byte("\r\n")); bytes.HasPrefix(line, []byte("-")) {
			c.dialer.refusal.Store(ServerError(line[1:]))
		}
	}
	if err != nil {
		if !errors.Is(err, net.ErrClosed) {
			c.failed.Store(true)
		}
		c.dialer.onBroken()
	}
	return n, err
}

func (c *conn) Close() error {
	c.dialer.closed(c)
	c.dialer.onBroken()
	return c.Conn.Close()
}

func (d *dialer) closed(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, first := d.open[c]; !first {
		return // rueidis closes from several sides
	}
	delete(d.open, c)
	switch lasted := time.Since(c.since) >= stableAfter; {
	case lasted:
		delete(d.refused, c.addr)
	case c.failed.Load():
		d.failedLocked(c.addr)
	}
}
