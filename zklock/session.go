package zklock

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// session is a ZooKeeper session and the entries in it. A new one is a new conn; nothing
// of it is ever found by another, since names of nodes come from IDs that are used once.
type session struct {
	*conn
	backend  *backend
	opts     driver.SessionOptions
	renewals *renewalTimes

	// entries counts those that may be in the store. Each is counted before the request that
	// makes it is sent, until it is known to be gone.
	entries atomic.Int64
}

func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	opened := renewal{sent: bootclock.Now()}
	c, err := openConn(ctx, b.opts, b.servers, o.TTL, func(err error) { o.Gone("", err) })
	if err != nil {
		return nil, 0, explain("open a session", err)
	}
	opened.answered = bootclock.Now()
	if err := c.checkFormat(ctx, b.opts, true); err != nil {
		c.abandon()
		return nil, 0, err
	}
	s := &session{conn: c, backend: b, opts: o}
	s.renewals = newRenewalTimes(c.timeout(), opened)
	granted := c.whenShorter(s.shorter)
	s.renewals.shorten(opened.sent.At, granted) // it may be less since the line before last
	b.add(c)
	return s, granted, nil
}

// shorter is told that the session was continued with less than it had. Renewals are worth
// less from here on. What the core was told by the last one stands, and cannot be taken back
// in part: if that is more than the servers will now wait for us, the session is over, and
// its locks are lost before another can have been given them.
//
// The session is not closed, so that a program that acts at this moment on what Held said just
// before has the time that every other loss leaves it.
func (s *session) shorter(asked time.Time, granted time.Duration) {
	if !s.renewals.shorten(asked, granted) {
		return
	}
	err := fmt.Errorf("%w: the server that continues the session keeps it for %s, less than was granted before and promised", driver.ErrGone, granted)
	if s.conn.end(err) {
		s.opts.Gone("", err)
		go s.conn.drop() // it is the library that has brought us here
	}
}

func (s *session) Ticket(r driver.Request) driver.Ticket {
	if s.backend.opts.Strategy == StrategyNode {
		return newNodeTicket(s, r)
	}
	return newTicket(s, r)
}

func (s *session) Close(ctx context.Context) error {
	err := s.conn.close(ctx)
	s.backend.remove(s.conn)
	return err
}

// sessionName is how List shows a session, and ZooKeeper's own tools, too.
func sessionName(id int64) string {
	if id == 0 {
		return ""
	}
	return "0x" + strconv.FormatUint(uint64(id), 16)
}
