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
	conn      redisconn.Conn
	opts      Options
	dialect   *dialect
	retention string // of the counters, in milliseconds; "0": there are none
}

func newAttempts(conn redisconn.Conn, o Options, d *dialect) *attempts {
	a := &attempts{conn: conn, opts: o, dialect: d, retention: "0"}
	if o.Fence != FenceOff {
		a.retention = strconv.FormatInt(o.Retention.Milliseconds(), 10)
	}
	return a
}

func (a *attempts) String() string { return a.conn.String() }

func (a *attempts) Traits() driver.Traits {
	return driver.Traits{Fencing: a.opts.Fence != FenceOff, Push: true, Forgets: true, Liveness: driver.Leased, MinTTL: minTTL}
}

func (a *attempts) Close() error {
	a.conn.Close()
	return nil
}

// keys are the lock's, its counter's and its waiters'. The lock's is the name itself, for
// that is what the other libraries make of it.
func (a *attempts) keys(name string) ([]string, error) {
	key := a.opts.Prefix + name
	braced, ok := setnx.Tag(key)
	switch {
	case strings.HasPrefix(key, a.opts.Fence) && a.opts.Fence != FenceOff, strings.HasPrefix(key, setnx.CompanionPrefix):
		return nil, fmt.Errorf("%w: keys that begin with %q are taken by this strategy", driver.ErrUnsupported, setnx.CompanionPrefix)
	case !ok && a.conn.Topology() == redisconn.Cluster:
		return nil, fmt.Errorf("%w: with '}' in the name its keys cannot share a slot of the cluster", driver.ErrUnsupported)
	}
	return []string{key, a.opts.Fence + braced, setnx.WaitersPrefix + braced}, nil
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
	s := &attemptSession{
		store: a, opts: o, id: strings.ToLower(crand.Text()[:16]), uuid: newUUID(),
		tickets: map[string]*attempt{}, names: map[string]*nameWaiters{},
	}
	s.done, s.finish = context.WithCancel(context.Background())
	if a.dialect.announces {
		return s, o.TTL, nil
	}
	l := &redisconn.Listener{Conn: a.conn, Channel: setnx.ChannelPrefix + s.id, Message: s.woken, Stands: func(context.Context) { s.ringAll() }}
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
	store  *attempts
	opts   driver.SessionOptions
	id     string
	uuid   string
	done   context.Context // ended by Close
	finish context.CancelFunc

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
		time.AfterFunc(later+rand.N(later/4), t.bell.Ring)
	default:
		t.bell.Ring()
	}
}

func (s *attemptSession) ringAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		t.bell.Ring()
	}
}

// KeepAlive extends what we hold or may hold. Waiters have nothing in the store that a
// renewal would keep.
func (s *attemptSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return 0, errSessionClosed
	}
	var all []heldKey
	for _, t := range s.tickets {
		if t.sent {
			all = append(all, heldKey{t, t.held})
		}
	}
	s.mu.Unlock()
	if err := s.extend(ctx, all); err != nil {
		redialAfter(ctx, s.store.conn)
		return 0, err
	}
	return s.opts.TTL, nil
}

// heldKey is what was known of a ticket when its renewal was sent.
type heldKey struct {
	*attempt
	confirmed bool
}

func (s *attemptSession) extend(ctx context.Context, all []heldKey) error {
	most := namesPerCall
	if s.store.conn.Topology() == redisconn.Cluster {
		most = 1
	}
	var calls []redisconn.Call
	for i, k := range all {
		if i%most == 0 {
			calls = append(calls, redisconn.Call{Args: []string{millis(s.opts.TTL)}})
		}
		c := &calls[len(calls)-1]
		c.Keys = append(c.Keys, k.keys[0])
		c.Args = append(c.Args, s.store.dialect.me(k.attempt))
	}
	if len(calls) == 0 {
		return nil
	}
	var failed error
	for i, r := range s.store.conn.EvalAll(ctx, s.store.dialect.extend, calls) {
		if r.Err != nil {
			failed = r.Err
			continue
		}
		lost, _ := r.Value.([]any)
		for _, n := range lost {
			if at, ok := n.(int64); ok && at >= 1 && i*most+int(at) <= len(all) {
				s.lost(all[i*most+int(at)-1])
			}
		}
	}
	return failed
}

// lost handles a key that is not ours. If we had no answer yet when the renewal was sent,
// the request may not have arrived, and brings a whole TTL when it does.
func (s *attemptSession) lost(k heldKey) {
	s.mu.Lock()
	gone := k.confirmed && !k.left && s.tickets[k.request.ID] == k.attempt
	if gone {
		k.gone, k.sent = true, false
		delete(s.tickets, k.request.ID)
		k.bell.Ring()
	}
	s.mu.Unlock()
	if gone {
		s.opts.Gone(k.request.ID, fmt.Errorf("%w: the key is not ours at the renewal", driver.ErrGone))
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
