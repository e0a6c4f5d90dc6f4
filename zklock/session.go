package zklock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// session is a ZooKeeper session and the entries in it. A new one is a new conn; nothing
// of it is ever found by another, since names of nodes come from IDs that are used once.
type session struct {
	*conn
	backend *backend
	opts    driver.SessionOptions
	touches *touches

	// entries counts those that may be in the store. Each is counted before the request that
	// makes it is sent, until it is known to be gone.
	entries atomic.Int64
}

func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	opened := touch{sent: time.Now()}
	c, err := openConn(ctx, b.opts, b.servers, o.TTL, func(err error) { o.Gone("", err) })
	if err != nil {
		return nil, 0, explain("open a session", err)
	}
	opened.answered = time.Now()
	s := &session{conn: c, backend: b, opts: o}
	s.touches = newTouches(c.timeout(), opened)
	granted := c.whenShorter(s.shorter)
	s.touches.shorten(opened.sent, granted) // it may be less since the line before last
	b.add(c)
	return s, granted, nil
}

// shorter is told that the session was continued with less than it had. Renewals are worth
// less from here on. What the core was told by the last one stands, and cannot be taken back
// in part: if that is more than the servers will now wait for us, the session is over, and
// its locks are lost while nobody can have been given them yet.
//
// The session is not closed, so that whoever acts at this moment on what Held said just
// before has the time that every other loss leaves him.
func (s *session) shorter(asked time.Time, granted time.Duration) {
	if !s.touches.shorten(asked, granted) {
		return
	}
	err := fmt.Errorf("%w: the server that continues the session keeps it for %s, less than was granted before and promised", driver.ErrGone, granted)
	if s.conn.end(err) {
		s.opts.Gone("", err)
		go s.conn.drop() // it is the library that has brought us here
	}
}

// KeepAlive renews by a request that a majority answers, if there is an entry to lose.
//
// Without one it only asks the server it is connected to, which costs the ensemble
// nothing. That is honest: an entry holds only after its own create was answered by a
// majority, which comes later than this, and so proves the same as a renewal would.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	var now touch
	var connected time.Time
	_, err := call(ctx, s.conn, func() (struct{}, error) {
		// Before the entries are looked at: what is entered later is sent later.
		now.sent, connected = time.Now(), s.connectedAt()
		if s.entries.Load() == 0 {
			_, _, err := s.zk.Exists("/")
			return struct{}{}, err
		}
		_, err := s.zk.Multi(&zk.CheckVersionRequest{Path: "/", Version: -1})
		return struct{}{}, err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		s.bounce() // perhaps another server answers
	}
	if errors.Is(err, zk.ErrNoAuth) {
		err = nil // "/" is not for us to see; that, too, is a majority's answer
	}
	if err != nil {
		return 0, explain("renew", err)
	}
	now.answered = time.Now()
	granted := s.touches.renewed(began, now, connected)
	if granted <= 0 {
		return 0, errors.New("renew: the one before is too long ago; renewing again")
	}
	return granted, nil
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
