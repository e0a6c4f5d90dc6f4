package pglock

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// sessionConn is a session's separate connection. It renews and, if the channel so decides, it
// listens: one connection for both, since renewals are a few in a TTL, and each of them proves that
// the connection on which notifications should arrive is alive. An exhausted pool affects neither.
//
// One goroutine owns the connection, and sets it up again when it breaks, until
// the session's context ends.
type sessionConn struct {
	to    linker
	heard func(channel, payload string)
	broke func() // called each time the connection has ended, and its LISTEN with it

	mu        sync.Mutex
	requests  []*request
	interrupt context.CancelFunc // ends the owner's sleep; nil while it does not sleep
}

// request is something to be done on the connection.
type request struct {
	ctx    context.Context
	do     func(context.Context, runner) error
	answer chan error // one slot: the caller may have given up
}

// dialPause is the least time between two dials (L7).
const dialPause = 150 * time.Millisecond

// start returns when the connection is set up and keeps it until done ends. ctx
// bounds the start only.
func (l *sessionConn) start(ctx, done context.Context) error {
	c, err := l.to.link(ctx)
	if err != nil {
		return err
	}
	go l.run(done, c)
	return nil
}

// submit has something done on the connection, after what was submitted before. While that is down,
// it waits for the next.
func (l *sessionConn) submit(ctx context.Context, do func(context.Context, runner) error) (answer <-chan error) {
	a := &request{ctx: ctx, do: do, answer: make(chan error, 1)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, a)
	if l.interrupt != nil {
		l.interrupt()
	}
	return a.answer
}

// ask waits until it is done.
func (l *sessionConn) ask(ctx context.Context, do func(context.Context, runner) error) error {
	select {
	case err := <-l.submit(ctx, do):
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next takes what was asked, or the right to sleep in a context that ask ends.
func (l *sessionConn) next(done context.Context) (*request, context.Context, context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.interrupt = nil
	for len(l.requests) > 0 {
		a := l.requests[0]
		l.requests = l.requests[1:]
		if a.ctx.Err() == nil {
			return a, nil, nil
		}
	}
	ctx, cancel := context.WithCancel(done)
	l.interrupt = cancel
	return nil, ctx, cancel
}

func (l *sessionConn) run(done context.Context, c link) {
	for {
		l.serve(done, c)
		l.broke()
		c.close()
		for c = nil; c == nil; {
			if done.Err() != nil {
				return
			}
			c = l.again(done)
		}
	}
}

// serve does what is asked and listens in between, until the connection breaks.
func (l *sessionConn) serve(done context.Context, c link) {
	for done.Err() == nil {
		a, asleep, cancel := l.next(done)
		if a != nil {
			// A context that ends breaks the connection, and rightly: a server that does not
			// answer on it may answer on another.
			a.answer <- a.do(a.ctx, c)
			if c.broken() {
				return
			}
			continue
		}
		err := c.wait(asleep, l.heard)
		woken := asleep.Err() != nil
		cancel()
		if err != nil && !woken {
			return
		}
	}
}

// again makes one attempt to connect, after a pause.
func (l *sessionConn) again(done context.Context) link {
	pause(done)
	ctx, cancel := context.WithTimeout(done, dialTimeout)
	defer cancel()
	c, err := l.to.link(ctx)
	if err != nil {
		l.refuse(err)
		return nil
	}
	return c
}

// refuse tells those that wait for the connection why there is none.
func (l *sessionConn) refuse(err error) {
	l.mu.Lock()
	asked := l.requests
	l.requests = nil
	l.mu.Unlock()
	for _, a := range asked {
		a.answer <- err
	}
}

// pause takes dialPause or up to twice that, and ends with done.
func pause(done context.Context) {
	timer := time.NewTimer(dialPause + rand.N(dialPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done.Done():
	}
}
