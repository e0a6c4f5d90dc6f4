package redislock

import (
	"context"
	crand "crypto/rand"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// attempts is the backend of the dialects: a mutex, with a token if there is a counter.
type attempts struct {
	conn     redisconn.Conn
	opts     Options
	dialect  *dialect
	identity *identity
}

func newAttempts(conn redisconn.Conn, o Options, d *dialect) *attempts {
	return &attempts{conn: conn, opts: o, dialect: d, identity: newIdentity(conn, o)}
}

func (a *attempts) String() string { return a.conn.String() }

func (a *attempts) Traits() driver.Traits {
	return driver.Traits{Fencing: !a.opts.NoFence, Push: true, Forgets: true, Liveness: driver.Leased, MinTTL: minTTL}
}

func (a *attempts) Close() error {
	a.identity.close()
	a.conn.Close()
	return nil
}

// keys are the lock's, its counter's and its waiters'. The lock's is the name itself, for
// that is what the other libraries make of it.
func (a *attempts) keys(name string) ([]string, error) {
	key := a.opts.Prefix + name
	braced, ok := setnx.Tag(key)
	switch {
	case strings.HasPrefix(key, a.opts.FencePrefix) && !a.opts.NoFence, strings.HasPrefix(key, setnx.CompanionPrefix):
		return nil, fmt.Errorf("%w: keys that begin with %q are taken by this strategy", driver.ErrUnsupported, setnx.CompanionPrefix)
	case !ok && a.conn.Topology() == redisconn.Cluster:
		return nil, fmt.Errorf("%w: with '}' in the name its keys cannot share a slot of the cluster", driver.ErrUnsupported)
	}
	return []string{key, a.opts.FencePrefix + braced, setnx.WaitersPrefix + braced}, nil
}

// mostWoken bounds how many waiters are woken in a row because nobody seems to listen. A
// node of a cluster knows only its own listeners.
func (a *attempts) wakeArgs(member string) []string {
	most := "8"
	if a.conn.Topology() == redisconn.Cluster {
		most = "1"
	}
	return []string{member, setnx.ChannelPrefix, most}
}

// Open subscribes to the session's channel, unless the dialect has one for each name.
func (a *attempts) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	o.TTL = o.TTL.Truncate(time.Millisecond) // as the server is asked for it: no more may be promised
	keep, err := a.opts.keep(o.TTL)
	if err != nil {
		return nil, 0, err
	}
	s := &attemptSession{
		store: a, opts: o, keep: keep, counter: keep, id: strings.ToLower(crand.Text()[:16]), uuid: newUUID(),
		tickets: map[string]*attempt{}, names: map[string]*nameWaiters{},
	}
	if a.opts.NoFence {
		s.counter = "0"
	}
	s.done, s.finish = context.WithCancel(context.Background())
	if a.dialect.announces {
		return s, o.TTL, nil
	}
	l := &redisconn.Listener{Conn: a.conn, Channel: setnx.ChannelPrefix + s.id, Message: s.woken, Subscribed: func(context.Context) { s.ringAll() }}
	if err := l.Start(ctx, s.done); err != nil {
		s.finish()
		return nil, 0, err
	}
	return s, o.TTL, nil
}

func newUUID() string {
	var b [16]byte
	_, _ = crand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// giveCall deletes the lock if it is me who has it.
func (a *attempts) giveCall(keys []string, me, member string) redisconn.Call {
	return redisconn.Call{Keys: keys, Args: append([]string{me}, a.dialect.giveArgs(a, keys[0], member)...)}
}

// attemptSession is a client's locks in a dialect. The arithmetic of trust is that of
// session: each key is given a whole TTL by the request that takes it, and KeepAlive covers
// whatever a request has been sent for.
type attemptSession struct {
	store   *attempts
	opts    driver.SessionOptions
	keep    string // how long what stands beside a key is remembered, in milliseconds
	counter string // the same of the counters; "0": there are none
	id      string
	uuid    string
	done    context.Context // ended by Close
	finish  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	made    int                 // tickets, to number them
	tickets map[string]*attempt // those that may hold or wait, by ID
	names   map[string]*nameWaiters
	left    []*attempt // what Close still has to give back
}

// nameWaiters listens for the releases of one name as long as somebody waits for it.
type nameWaiters struct {
	waiting int
	stop    context.CancelFunc
}

func (s *attemptSession) Ticket(r driver.Request) driver.Ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return &attempt{session: s, request: r, number: strconv.Itoa(s.made)}
}

// later is when the one behind the woken waiter looks whether that one has taken its turn:
// long after a live one would have.
const later = 250 * time.Millisecond

// woken is told "ID", the waiter whose turn it is, or "ID later", the one behind it. A
// waiter that has left since is no different from one that has died.
func (s *attemptSession) woken(text string) {
	id, how, _ := strings.Cut(text, " ")
	s.mu.Lock()
	t := s.tickets[id]
	s.mu.Unlock()
	switch {
	case t == nil:
	case how == "later":
		time.AfterFunc(later+rand.N(later/4), t.bell.Notify)
	default:
		t.bell.Notify()
	}
}

func (s *attemptSession) ringAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		t.bell.Notify()
	}
}

// Close gives everything back. It goes on where it failed when it is called again.
func (s *attemptSession) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for _, t := range s.tickets {
			s.left = append(s.left, t)
		}
		clear(s.tickets)
		s.finish()
	}
	left := s.left
	s.mu.Unlock()
	if len(left) == 0 {
		return ctx.Err()
	}
	calls := make([]redisconn.Call, len(left))
	for i, t := range left {
		calls[i] = t.giveCall()
	}
	var failed []*attempt
	var err error
	for i, r := range s.store.conn.EvalAll(ctx, s.store.dialect.give, calls) {
		if r.Err != nil && redisconn.Answered(r.Err) == "" {
			failed, err = append(failed, left[i]), r.Err
		}
	}
	s.mu.Lock()
	s.left = failed
	s.mu.Unlock()
	return err
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
