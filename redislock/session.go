package redislock

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/pushqueue"
	"github.com/hasplock/hasp/internal/redisconn"
)

// session is a client's entries in the queues. The store knows nothing of it but the
// channel it listens to: each entry carries its own expiry, and KeepAlive extends all.
//
// Trust is counted from the sending of the last good KeepAlive, for every entry alike.
// That is right because a request that enters or renews gives the entry a whole TTL from
// its arrival, which is later than its sending; because KeepAlive covers each ticket that
// was registered before, and tickets are registered before their request is sent; and
// because nothing else ever moves an expiry, a grant least of all. A KeepAlive that has not
// reached every entry says what is left of those it has not: each ticket knows when the
// last request was sent that is known to have given it its TTL.
type session struct {
	*pushqueue.Session[extra]

	queue *queue
	id    string
	ttl   string           // in microseconds, as the scripts want it
	keep  string           // how long a name is remembered that we use, in milliseconds
	left  []redisconn.Call // what Close still has to remove; guarded by the session's lock
}

// ticket is the ticket of one entry.
type ticket = pushqueue.Ticket[extra]

// extra is what is kept with a ticket. But for the key it is guarded by the session's lock.
type extra struct {
	key      string
	renewed  time.Time // when the last request was sent that gave the entry its TTL
	watching bool      // the core has been asked to ask: it keeps the time
}

var errSessionClosed = pushqueue.ErrClosed

func newSession(q *queue, o driver.SessionOptions, keep string) *session {
	s := &session{
		queue: q, ttl: micros(o.TTL), keep: keep,
		id: strings.ToLower(rand.Text()[:16]), // 80 random bits
	}
	s.Session = pushqueue.New[extra](s, o)
	// The release that grants does not wait for the replicas: each who is granted asks for them.
	s.Confirm = q.opts.Replicas > 0
	s.Entering = func(t *ticket) { t.Extra.renewed = time.Now() }
	return s
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	t := s.Prepare(r)
	t.Extra.key = s.queue.key(r.Name)
	return t
}

// Close removes all entries. It goes on where it failed when it is called again.
func (s *session) Close(ctx context.Context) error {
	last := s.End()
	s.Lock()
	for _, t := range last {
		s.left = append(s.left, s.queue.leaveCall(t.Extra.key, t.Request.ID))
	}
	left := s.left
	s.Unlock()
	if len(left) == 0 {
		return ctx.Err()
	}
	var failed []redisconn.Call
	var err error
	for i, r := range s.queue.conn.EvalAll(ctx, leaveScript, left) {
		if r.Err != nil && redisconn.Answered(r.Err) == "" {
			failed, err = append(failed, left[i]), r.Err
		}
	}
	s.Lock()
	s.left = failed
	s.Unlock()
	return err
}

// micros writes a duration as the scripts want it.
func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// lookUp renews what waits, which tells what holds by now. If it fails, the next KeepAlive
// does it. In a new session nothing waits, and nothing is sent.
func (s *session) lookUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.Options.TTL/2)
	defer cancel()
	_, _ = s.renew(ctx, func(t *ticket) bool { return !t.Held() })
}
