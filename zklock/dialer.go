package zklock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

// dialer chooses servers and connects to them, for one conn. It is also the client
// library's HostProvider, whose own one resolves names once for ever and waits a second
// before it tries a lone server again.
type dialer struct {
	hosts   []string // host:port, shuffled: clients should not all begin at the same server
	opts    *Options
	timeout time.Duration
	conn    *conn

	ctx    context.Context // ends with the conn
	cancel context.CancelFunc

	mu       sync.Mutex
	next     int
	attempts int       // since the last connection that stood for a while
	upSince  time.Time // zero while there is no session on a connection
	lastErr  error
}

func newDialer(o *Options, servers []string, c *conn) *dialer {
	hosts := append([]string(nil), servers...)
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	d := &dialer{hosts: hosts, opts: o, timeout: o.ConnectTimeout, conn: c}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Init is given the servers we already have. Names are resolved when they are dialed.
func (d *dialer) Init([]string) error { return nil }

// Len is the number of servers.
func (d *dialer) Len() int { return len(d.hosts) }

// Connected does nothing: the conn is told by its event.
func (d *dialer) Connected() {}

// Next returns the next server. The second result makes the library look whether it was
// closed, which it does nowhere else while it cannot connect; the pause that goes with it
// is ours to make.
func (d *dialer) Next() (string, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	host := d.hosts[d.next%len(d.hosts)]
	d.next++
	return host, d.ctx.Err() != nil
}

const (
	// stableAfter is how long a connection must last to count as a success. A server that accepts
	// us and closes the connection again must not be dialed without a pause.
	stableAfter = time.Second
	pauseFirst  = 100 * time.Millisecond
	pauseMost   = time.Second
)

// pause waits before a dial: not at all in the first round through the servers, then
// doubling, with a random half taken off (L7).
func (d *dialer) pause() error {
	d.mu.Lock()
	if !d.upSince.IsZero() && time.Since(d.upSince) > stableAfter {
		d.attempts = 0
	}
	d.upSince = time.Time{}
	round := d.attempts / len(d.hosts)
	d.attempts++
	d.mu.Unlock()
	if round == 0 {
		return d.ctx.Err()
	}
	most := min(pauseFirst<<min(round-1, 10), pauseMost)
	t := time.NewTimer(most/2 + rand.N(most/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-d.ctx.Done():
	}
	return d.ctx.Err()
}

// up notes that a server has given us a session, or has it still.
func (d *dialer) up() {
	d.mu.Lock()
	d.upSince = time.Now()
	d.lastErr = nil
	d.mu.Unlock()
}

// tried reports whether each server has been tried without success, and what the last one
// said.
func (d *dialer) tried() (all bool, last error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.attempts >= len(d.hosts), d.lastErr
}

// dial is called by the library, from one goroutine, with a server from Next. It ends
// with the conn.
func (d *dialer) dial(network, address string, _ time.Duration) (net.Conn, error) {
	d.conn.noteUnreachable() // dialing again is the only sign that the server before did not serve
	if err := d.pause(); err != nil {
		return nil, err
	}
	answerBy := time.Now().Add(d.timeout)
	c, err := d.connect(address)
	if err != nil && !silent(err) {
		err = fmt.Errorf("%s: %w", address, err)
	} else {
		err = fmt.Errorf("%s: it accepted the connection and did not answer like a ZooKeeper server that serves%s", address, silenceCauses)
	}
	d.mu.Lock()
	d.lastErr = err // unless up comes
	d.mu.Unlock()
	if c == nil {
		return nil, err
	}
	t := newConnMonitor(c, d.conn, answerBy)
	if !d.conn.attach(t) {
		return nil, errors.Join(context.Canceled, c.Close())
	}
	return t, nil
}

// connect opens a TCP connection and, with TLS, proves the server's name.
func (d *dialer) connect(address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(d.ctx, d.timeout)
	defer cancel()
	return d.opts.dial(ctx, address)
}

func (o *Options) dial(ctx context.Context, address string) (net.Conn, error) {
	if o.TLS == nil {
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	c, err := (&tls.Dialer{Config: o.secure.Fresh(o.TLS)}).DialContext(ctx, "tcp", address)
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &plain):
		err = fmt.Errorf("%w: it does not speak TLS: use the port of secureClientPort, or tls=false", err)
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		err = fmt.Errorf("%w: it ended the connection instead of a TLS handshake: use the port of secureClientPort, or tls=false", err)
	}
	return c, err
}

// silenceCauses are what a server refuses without a word.
const silenceCauses = " (there may be as many connections from this host as its maxClientCnxns allows; it may expect TLS, which tls=true switches on; or it has no quorum)"
