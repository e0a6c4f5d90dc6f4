package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/driver/kit/keepalive"
)

// keysPerCall bounds how long one renewal blocks a server for all others, and how much of it is
// lost when its time is over: each slice of so many locks is a separate renewal.
const (
	keysPerCall  = 256
	slicesAtOnce = 8
)

// KeepAlive extends the held locks on every server, beginning with those that were extended longest
// ago, and succeeds if each lock has been extended on a majority. Without locks there is nothing to
// send: a waiter has nothing at the servers that needs a renewal.
//
// A lock that a majority cannot extend, because it is on few servers and one of them is away,
// does not prevent the renewal of another. The end of ctx does not undo the renewals so far.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	r, err := s.renewal()
	if err != nil || len(r.all) == 0 {
		return s.opts.TTL, err
	}
	r.run(ctx)
	return r.answer(ctx)
}

// renewedLock is a lock that was held when its renewal began.
type renewedLock struct {
	*ticket
	me       string
	extended int
	missing  []int // servers that have answered, and do not have it
}

// renewal is one KeepAlive.
type renewal struct {
	session *session
	began   bootclock.Instant
	all     []*ticket // held when it began; those renewed longest ago first

	mu           sync.Mutex
	slow         []bool // servers that did not answer a slice in time, for which the next ones do not wait
	answered     []bool // servers that have answered anything
	serverFailed bool   // a lock could not be renewed, although a majority has answered
	err          error
}

func (s *session) renewal() (*renewal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSessionClosed
	}
	s.renewals++ // before anything is sent: see session
	r := &renewal{session: s, began: bootclock.Now(), slow: make([]bool, len(s.store.nodes)), answered: make([]bool, len(s.store.nodes))}
	for _, t := range s.tickets {
		if t.holdsLocked() {
			r.all = append(r.all, t)
		}
	}
	slices.SortFunc(r.all, func(a, b *ticket) int { return a.renewed.Compare(b.renewed) })
	return r, nil
}

// run renews slice after slice until all are through, ctx has ended or so few servers answer
// that nothing can be renewed.
func (r *renewal) run(ctx context.Context) {
	n := (len(r.all) + keysPerCall - 1) / keysPerCall
	keepalive.Slices(n, slicesAtOnce, func(i int) bool {
		if ctx.Err() != nil {
			return false
		}
		x := r.slice(r.all[i*keysPerCall:min((i+1)*keysPerCall, len(r.all))], i == 0)
		x.run(ctx)
		return x.conclude()
	})
	// Connections without any answer by the end of the time are redialled: the next
	// renewal must not hang on them, too. Not if the session has ended: its releases use them.
	for i, n := range r.session.store.nodes {
		if r.slow[i] && !r.answered[i] && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			n.conn.Redial("")
		}
	}
}

// answer makes the result of KeepAlive.
func (r *renewal) answer(ctx context.Context) (time.Duration, error) {
	s := r.session
	err := r.err
	if over := ctx.Err(); err != nil && over != nil {
		err = fmt.Errorf("%w: %w", over, err)
	}
	tally := keepalive.Tally{TTL: s.opts.TTL, Late: map[string]time.Duration{}, Err: err, ServerFailed: r.serverFailed}
	s.mu.Lock()
	for _, t := range r.all {
		if !t.holdsLocked() {
			continue // it has left, or is lost
		}
		tally.All++
		if t.renewed.Before(r.began) {
			tally.Late[t.request.ID] = keepalive.Left(s.opts.TTL, t.renewed, r.began)
		}
	}
	s.mu.Unlock()
	return tally.Answer(ctx)
}
