package redisconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// lazy is a Conn to a single server that may be down at first. Until the first connection is
// established, a request fails at once and starts an attempt to connect in the background. From
// then on the Conn that Open has returned serves it, which dials again by itself.
type lazy struct {
	cfg  Config
	done context.Context
	end  context.CancelFunc

	mu         sync.Mutex
	conn       Conn // nil until it is established
	connecting chan struct{}
	err        error     // of the last attempt
	next       time.Time // of the next attempt, at the earliest
	pause      time.Duration
}

// Lazy makes a Conn that connects at its first use. Close ends the attempts.
func Lazy(cfg Config) Conn {
	l := &lazy{cfg: cfg}
	l.done, l.end = context.WithCancel(context.Background())
	return l
}

// errNotConnected marks requests that were never sent.
var errNotConnected = errors.New("not connected")

// NotSent reports whether an error says that nothing was sent: there was no connection, and none
// could be made.
func NotSent(err error) bool {
	var op *net.OpError
	return errors.Is(err, errNotConnected) || errors.As(err, &op) && op.Op == "dial"
}

// Connect returns when the connection is established, or with the error of the attempt. A Conn that
// is not lazy is connected already.
func Connect(ctx context.Context, c Conn) error {
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
func (l *lazy) get() (Conn, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conn != nil {
		return l.conn, nil, nil
	}
	err := fmt.Errorf("%s: %w", l.cfg.Label, errNotConnected)
	if l.err != nil {
		err = fmt.Errorf("%w: %w", errNotConnected, l.err) // names the server
	}
	if l.connecting == nil && l.done.Err() == nil && !time.Now().Before(l.next) {
		l.connecting = make(chan struct{})
		go l.connect(l.connecting)
	}
	return nil, l.connecting, err
}

func (l *lazy) connect(done chan struct{}) {
	c, err := Open(l.done, l.cfg)
	l.mu.Lock()
	defer l.mu.Unlock()
	defer close(done)
	l.connecting, l.err = nil, err
	switch {
	case err != nil:
		l.pause = min(max(2*l.pause, firstPause), 2*maxPause) // an attempt may dial twice
		l.next = time.Now().Add(l.pause)
	case l.done.Err() != nil:
		c.Close()
		l.err = l.done.Err()
	default:
		l.conn = c
	}
}

func (l *lazy) String() string { return l.cfg.Label }

func (l *lazy) Topology() Topology {
	if c, _, err := l.get(); err == nil {
		return c.Topology()
	}
	return Single
}

func (l *lazy) Eval(ctx context.Context, s *Script, call Call, replicas int) Reply {
	c, _, err := l.get()
	if err != nil {
		return Reply{Err: err}
	}
	return c.Eval(ctx, s, call, replicas)
}

func (l *lazy) EvalAll(ctx context.Context, s *Script, calls []Call) []Reply {
	c, _, err := l.get()
	if err != nil {
		rs := make([]Reply, len(calls))
		for i := range rs {
			rs[i].Err = err
		}
		return rs
	}
	return c.EvalAll(ctx, s, calls)
}

func (l *lazy) Subscribe(ctx context.Context, channel string, up func(), message func(string)) error {
	c, _, err := l.get()
	if err != nil {
		return err
	}
	return c.Subscribe(ctx, channel, up, message)
}

func (l *lazy) Each(ctx context.Context, fn func(Node) error) error {
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
