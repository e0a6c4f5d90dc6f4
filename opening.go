package hasp

import (
	"context"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// opening is shared by the goroutines that wait for the same new session.
type opening struct {
	done chan struct{}
	err  error // for all of them; set before done is closed
}

// session returns the live session, opening one if there is none. However many goroutines
// ask, one connects at a time, and after a failure the next attempt waits: a dead server
// must not be hammered by each waiter on its own (L7).
func (c *Client) session(ctx context.Context) (*session, error) {
	for {
		c.mu.Lock()
		if c.closed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		s, o := c.current, c.opening
		if s == nil && o == nil {
			o = &opening{done: make(chan struct{})}
			c.opening = o
			c.working.Add(1) // not sealed, since not closed
			c.mu.Unlock()
			return c.openShared(ctx, o)
		}
		c.mu.Unlock()

		if s != nil {
			// No look at the clock: grant looks, before anything depends on it.
			if !s.over() {
				return s, nil
			}
			c.forget(s)
			continue
		}
		select {
		case <-o.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if o.err != nil {
			return nil, o.err
		}
	}
}

func (c *Client) forget(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == s {
		c.current = nil
	}
}

// openShared opens a session for all who wait on o. An error that is only this caller's
// (its context ended) is not shared: the others then try themselves.
func (c *Client) openShared(ctx context.Context, o *opening) (*session, error) {
	defer c.working.Done()
	// A server that says nothing keeps a caller for no longer than one that fails does (see ask).
	octx, cancel := context.WithTimeout(ctx, max(c.cfg.ttl, closeBound))
	defer cancel()
	defer context.AfterFunc(c.open, cancel)() // Close does not wait for a server that is down

	s, err := c.openSession(octx)

	c.mu.Lock()
	c.opening = nil
	switch {
	case c.closed:
		o.err = ErrClosed
	case err == nil:
		c.current = s
		c.openWait = backoff{}
	case ctx.Err() == nil:
		o.err = err
	}
	closed := c.closed
	c.mu.Unlock()
	close(o.done)

	if closed {
		if s != nil {
			s.end(ReasonClosed, ErrClosed)
			// end's own cleaning may come too late for Close to wait for it.
			c.closeSession(s.drv)
		}
		return nil, ErrClosed
	}
	return s, err
}

func (c *Client) openSession(ctx context.Context) (*session, error) {
	if !c.openWait.pause(ctx) {
		return nil, ctx.Err()
	}
	s := &session{client: c, entries: map[string]*entry{}}
	s.done, s.stop = context.WithCancelCause(context.Background())
	sent := bootclock.Now() // before the call: a slow answer must not lengthen the lease
	drv, granted, err := c.backend.Open(ctx, driver.SessionOptions{TTL: c.cfg.ttl, Gone: s.gone})
	if err != nil {
		c.openWait.failed()
		return nil, err
	}
	if err := s.start(drv, sent, granted); err != nil {
		c.openWait.failed()
		c.inBackground(func() { c.closeSession(drv) })
		return nil, err
	}
	return s, nil
}
