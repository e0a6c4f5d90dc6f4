package pglock

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// sessionConn is a session's separate connection. It renews and, while something waits, it listens: one
// connection for both, since renewals are a few in a TTL, and each of them proves that the connection on
// which notifications should arrive is alive. An exhausted pool affects neither.
//
// One goroutine owns the connection, and sets it up again when it breaks, until
// the session's context ends.
type sessionConn struct {
	to   linker
	done context.Context // the session's

	// patience bounds LISTEN and UNLISTEN, since a renewal may wait behind them: where the server does
	// not answer, there is time left for it on another connection.
	patience time.Duration

	// The owner's.
	heard map[string]*listener // those that listen here, by channel
	look  time.Time            // when to see whether something waits still

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

// start returns when the connection is set up and keeps it until the session ends. ctx
// bounds the start only.
func (l *sessionConn) start(ctx context.Context) error {
	c, err := l.to.link(ctx)
	if err != nil {
		return err
	}
	go l.run(c)
	return nil
}

// ask has something done on the connection. While that is down, it waits for the next.
func (l *sessionConn) ask(ctx context.Context, do func(context.Context, runner) error) error {
	return l.submit(ctx, &request{ctx: ctx, do: do, answer: make(chan error, 1)})
}

func (l *sessionConn) submit(ctx context.Context, a *request) error {
	l.mu.Lock()
	l.requests = append(l.requests, a)
	if l.interrupt != nil {
		l.interrupt()
	}
	l.mu.Unlock()
	select {
	case err := <-a.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-a.ctx.Done(): // the owner has ended
		return a.ctx.Err()
	}
}

// next takes what was asked, or the right to sleep in a context that ask ends.
func (l *sessionConn) next() (*request, context.Context, context.CancelFunc) {
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
	ctx, cancel := l.done, context.CancelFunc(nil)
	if len(l.heard) > 0 {
		ctx, cancel = context.WithDeadline(ctx, l.look)
	} else {
		ctx, cancel = context.WithCancel(ctx)
	}
	l.interrupt = cancel
	return nil, ctx, cancel
}

func (l *sessionConn) run(c link) {
	defer l.tell()
	for {
		l.serve(c)
		l.deaf()
		c.close()
		for c = nil; c == nil; {
			if l.done.Err() != nil {
				return
			}
			c = l.again()
		}
		l.tell()
	}
}

// serve does what is asked and listens in between, until the connection breaks.
func (l *sessionConn) serve(c link) {
	for l.done.Err() == nil && l.unlisten(c) == nil {
		a, asleep, cancel := l.next()
		if a != nil {
			// A context that ends breaks the connection, and rightly: a server that does not
			// answer on it may answer on another.
			a.answer <- a.do(a.ctx, c)
			if c.broken() {
				return
			}
			continue
		}
		err := c.wait(asleep, func(channel, payload string) {
			if h := l.heard[channel]; h != nil {
				h.heard(payload)
			}
		})
		woken := asleep.Err() != nil
		cancel()
		if err != nil && !woken {
			return
		}
	}
}

// again makes one attempt to connect, after a pause.
func (l *sessionConn) again() link {
	timer := time.NewTimer(dialPause + rand.N(dialPause))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-l.done.Done():
		return nil
	}
	ctx, cancel := context.WithTimeout(l.done, dialTimeout)
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
