package redislock

import (
	"context"
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// session is a client's entries in the queues. The store has no state of a session: each entry
// has its own expiry, KeepAlive extends all, and the session listens to one channel.
//
// Trust is counted from the moment at which the last successful KeepAlive was sent, for all
// entries. That is right for three reasons. A request that enters or renews gives the entry a
// whole TTL from its arrival, which is later than its sending. KeepAlive covers each ticket that
// was registered before, and a ticket is registered before its request is sent. Nothing else
// changes an expiry; in particular a grant does not. A KeepAlive that has not reached every entry
// says how much is left for each of the others: each ticket knows when the last request was sent
// that is known to have given it its TTL.
type session struct {
	*pushqueue.Session[extra]

	queue *queue
	id    string
	ttl   string           // in microseconds, as the scripts expect it
	keep  string           // how long a name is remembered that we use, in milliseconds
	left  []redisconn.Call // the entries that Close still has to remove; guarded by the session's lock
}

// ticket is the ticket of one entry.
type ticket = pushqueue.Ticket[extra]

// extra is this driver's part of a ticket. The session's lock guards all of it but the key.
type extra struct {
	key      string
	renewed  bootclock.Instant // when the last request was sent that gave the entry its TTL
	watching bool              // the core has been told when to ask, and has a timer for it
	missed   bool              // a renewal has not found the entry of a request that was under way
}

var errSessionClosed = pushqueue.ErrClosed

func newSession(q *queue, o driver.SessionOptions, keep string) *session {
	s := &session{
		queue: q, ttl: micros(o.TTL), keep: keep,
		id: strings.ToLower(rand.Text()[:16]), // 80 random bits
	}
	s.Session = pushqueue.New[extra](s, o)
	// The release that grants does not wait for the replicas: each granted ticket asks for them.
	s.Confirm = q.opts.Replicas > 0
	s.Entering = func(t *ticket) { t.Extra.renewed = bootclock.Now() }
	return s
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	t := s.Prepare(r)
	t.Extra.key = s.queue.key(r.Name)
	return t
}

// Close removes all entries. Called again, it repeats only what has failed.
func (s *session) Close(ctx context.Context) error {
	last := s.End()
	s.Lock()
	for _, t := range last {
		s.left = append(s.left, s.leaveCall(t))
	}
	left := s.left
	s.Unlock()
	if len(left) == 0 {
		return ctx.Err()
	}
	failed, err := notDone(left, s.queue.guard.EvalAll(ctx, leaveScript, left, 0))
	s.Lock()
	s.left = failed
	s.Unlock()
	return err
}

// micros writes a duration as the scripts expect it.
func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// renewWaiters renews the entries that wait, which reports those that hold by now. If it fails,
// the next KeepAlive does it. In a new session nothing waits, and nothing is sent.
func (s *session) renewWaiters(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.Options.TTL/2)
	defer cancel()
	_, _ = s.renew(ctx, func(t *ticket) bool { return !t.Held() })
}
