package redislock

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// oneKeySession is a client's locks in a dialect. Trust is counted as in session: the request
// that takes a key gives it a whole TTL, and KeepAlive covers every key for which a request has
// been sent.
type oneKeySession struct {
	store   *oneKey
	opts    driver.SessionOptions
	keep    string // how long the other keys of a name are remembered, in milliseconds
	counter string // the same of the counters; "0": there are none
	id      string
	uuid    string
	done    context.Context // ended by Close
	finish  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	made    int                      // tickets, to number them
	tickets map[string]*oneKeyTicket // those that may hold or wait, by ID
	names   map[string]*nameWaiters
	leaving map[*oneKeyTicket]bool // those whose Leave has no answer yet, under way or not
	left    []*oneKeyTicket        // those that Close still has to release
}

// nameWaiters listens for the releases of one name as long as a ticket waits for it.
type nameWaiters struct {
	waiting int
	stop    context.CancelFunc
}

func (s *oneKeySession) Ticket(r driver.Request) driver.Ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	return &oneKeyTicket{session: s, request: r, number: strconv.Itoa(s.made)}
}

// laterDelay is after how long the second waiter tries, in case the first one has died: long
// after a live one would have taken the lock.
const laterDelay = 250 * time.Millisecond

// onWake handles the messages "ID", for the first waiter, and "ID later", for the second. A
// waiter that has left since is like one that has died.
func (s *oneKeySession) onWake(text string) {
	id, how, _ := strings.Cut(text, " ")
	s.mu.Lock()
	t := s.tickets[id]
	s.mu.Unlock()
	switch {
	case t == nil:
	case how == "later":
		time.AfterFunc(laterDelay+rand.N(laterDelay/4), t.signal.Notify)
	default:
		t.signal.Notify()
	}
}

func (s *oneKeySession) notifyAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		t.signal.Notify()
	}
}

// Close releases everything. Called again, it repeats only what has failed.
func (s *oneKeySession) Close(ctx context.Context) error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		for _, t := range s.tickets {
			s.left = append(s.left, t)
		}
		// A Leave without an answer may never have been sent, and the core gives up the one that is
		// under way when the session ends. A second request finds the key, or does nothing.
		for t := range s.leaving {
			s.left = append(s.left, t)
		}
		clear(s.tickets)
		clear(s.leaving)
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
	failed, err := notDone(left, s.store.conn.EvalAll(ctx, s.store.dialect.give, calls, 0))
	s.mu.Lock()
	s.left = failed
	s.mu.Unlock()
	return err
}
