package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// The pause between attempts to connect.
const (
	firstConnectPause = 50 * time.Millisecond
	maxConnectPause   = 2 * time.Second
)

// lazy is a connection to a single server that may be down at first. Until it is established, a
// request fails at once and starts an attempt to connect in the background. From then on the one
// that redisconn.Open has returned serves it, which dials again by itself.
type lazy struct {
	cfg  redisconn.Config
	done context.Context
	end  context.CancelFunc

	mu         sync.Mutex
	conn       redisconn.Conn // nil until it is established
	connecting chan struct{}
	err        error     // of the last attempt
	next       time.Time // of the next attempt, at the earliest
	pause      time.Duration
}

// newLazy makes a connection that is established at its first use. Close ends the attempts.
func newLazy(cfg redisconn.Config) redisconn.Conn {
	l := &lazy{cfg: cfg}
	l.done, l.end = context.WithCancel(context.Background())
	return l
}

// connect returns when the connection is established, or with the error of the attempt. One that is
// not lazy is established already.
func connect(ctx context.Context, c redisconn.Conn) error {
	l, ok := c.(*lazy)
	if !ok {
		return ctx.Err()
	}
	_, trying, err := l.get()
	if err == nil {
		return nil
	}
	if trying != nil {
		select {
		case <-trying:
		case <-ctx.Done():
			return ctx.Err()
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		err = l.err
	}
	return err
}

// get returns the connection, or an error and the attempt under way, if there is one.
func (l *lazy) get() (redisconn.Conn, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		return l.conn, nil, nil
	}
	err := fmt.Errorf("%s: %w", l.cfg.Label, redisconn.ErrNotConnected)
	if l.err != nil {
		err = fmt.Errorf("%w: %w", redisconn.ErrNotConnected, l.err) // names the server
	}
	if l.connecting == nil && l.done.Err() == nil && !time.Now().Before(l.next) {
		l.connecting = make(chan struct{})
		go l.open(l.connecting)
	}
	return nil, l.connecting, err
}

func (l *lazy) open(done chan struct{}) {
	c, err := redisconn.Open(l.done, l.cfg)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(done)
	l.connecting, l.err = nil, err
	switch {
	case err != nil:
		l.pause = min(max(2*l.pause, firstConnectPause), maxConnectPause)
		l.next = time.Now().Add(l.pause)
	case l.done.Err() != nil:
		c.Close()
		l.err = l.done.Err()
	default:
		l.conn = c
	}
}

func (l *lazy) String() string { return l.cfg.Label }

func (l *lazy) Topology() redisconn.Topology {
	if c, _, err := l.get(); err == nil {
		return c.Topology()
	}
	return redisconn.Single
}

func (l *lazy) Eval(ctx context.Context, s *redisconn.Script, call redisconn.Call, replicas int) redisconn.Reply {
	c, _, err := l.get()
	if err != nil {
		return redisconn.Reply{Err: err}
	}
	return c.Eval(ctx, s, call, replicas)
}

func (l *lazy) EvalAll(ctx context.Context, s *redisconn.Script, calls []redisconn.Call, replicas int) []redisconn.Reply {
	c, _, err := l.get()
	if err != nil {
		return slices.Repeat([]redisconn.Reply{{Err: err}}, len(calls))
	}
	return c.EvalAll(ctx, s, calls, replicas)
}

func (l *lazy) Subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	c, _, err := l.get()
	if err != nil {
		return err
	}
	return c.Subscribe(ctx, channel, up, message)
}

func (l *lazy) Each(ctx context.Context, fn func(redisconn.Node) error) error {
	c, _, err := l.get()
	if err != nil {
		return err
	}
	return c.Each(ctx, fn)
}

func (l *lazy) NodeOf(context.Context, string) string { return "" } // a single server

func (l *lazy) Redial(node string) {
	if c, _, err := l.get(); err == nil {
		c.Redial(node)
	}
}

func (l *lazy) Close() {
	l.end()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		l.conn.Close()
	}
}
