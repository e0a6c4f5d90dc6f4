package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// pendingRelease is a key that may be at a server and must not stay: of a failed attempt, or of a
// lock whose release the server has not confirmed.
type pendingRelease struct {
	ticket *ticket
	me     string // "": there is no key, only a waiter to remove
	waiter string // the waiter to remove there; may be empty
	wake   bool   // wake one that does
	since  time.Time

	// absentRetries is how often the answer that the key is absent does not count yet: the request
	// that sets it may still be on its way, on a connection that broke.
	absentRetries int
}

// maxAbsentRetries gives such a request half a second after the server is reachable again.
const maxAbsentRetries = 4

// pendingReleases are those at one server. At most one goroutine releases at a time, in one
// pipeline for all, so that a server that is down costs a few requests and not one for each key.
type pendingReleases struct {
	list      []pendingRelease // those under way included
	releasing bool
	open      int // requests about keys that are under way, each of which may add a pending release yet
}

// addPendingLocked notes a pending release and has it made.
func (s *session) addPendingLocked(i int, d pendingRelease) {
	o := &s.pending[i]
	o.list = append(o.list, d)
	if !o.releasing {
		o.releasing = true
		go s.releasePending(i)
	}
}

// The pause between attempts at a server that does not answer.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// releasePending makes releases until none is pending. A release that is older than the TTL is
// dropped: the key has expired, unless the request that sets it is still on its way. That key lasts
// at most a TTL from its arrival, which is the bound for all remains.
func (s *session) releasePending(i int) {
	for pause := firstPause; ; {
		s.mu.Lock()
		o := &s.pending[i]
		o.list = slices.DeleteFunc(o.list, func(d pendingRelease) bool {
			over := time.Since(d.since) >= s.opts.TTL
			if over {
				d.ticket.recordDroppedLocked(i, d.me)
			}
			return over
		})
		due := slices.Clone(o.list)
		if len(due) == 0 || s.done.Err() != nil {
			o.releasing = false
			s.mu.Unlock()
			s.signalSettled()
			return
		}
		s.mu.Unlock()

		left := s.releaseBatch(i, due)
		s.mu.Lock()
		o.list = append(left, o.list[len(due):]...)
		s.mu.Unlock()
		s.signalSettled()
		if len(left) == 0 {
			pause = firstPause
			continue
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-s.done.Done():
			timer.Stop()
		}
		pause = min(2*pause, mostPause)
	}
}

// releaseBatch returns the releases that the server has not answered, or not conclusively, or that
// it refuses for the moment. One that it refuses for good is done.
func (s *session) releaseBatch(i int, due []pendingRelease) []pendingRelease {
	ctx, cancel := context.WithTimeout(s.done, s.requestBound())
	defer cancel()
	calls := make([]redisconn.Call, len(due))
	for j, d := range due {
		calls[j] = d.call()
	}
	replies := s.store.nodes[i].evalAll(ctx, setnx.Give, calls)
	s.mu.Lock()
	defer s.mu.Unlock()
	var left []pendingRelease
	for j, r := range replies {
		d := due[j]
		switch {
		case d.me == "" && (redisconn.NotSent(r.Err) || redisconn.RefusedNow(r.Err)):
			// As in Leave: a place at a server that is down is not worth another request.
		case redisconn.RefusedNow(r.Err):
			left = append(left, d)
		case r.Err != nil && redisconn.Answered(r.Err) == "":
			d.ticket.recordLostAnswerLocked(i, d.me, r)
			left = append(left, d)
		case r.Value != int64(1) && d.absentRetries > 0:
			d.absentRetries--
			left = append(left, d)
		default:
			d.ticket.recordReleasedLocked(i, d.me, r)
		}
	}
	return left
}

// pendingLocked makes the release of the attempt with the value me. A ticket that has left waits no
// more.
func (t *ticket) pendingLocked(me string, wake bool) pendingRelease {
	d := pendingRelease{ticket: t, me: me, wake: wake, since: time.Now()}
	if t.left {
		d.waiter = t.member()
	}
	return d
}

// call deletes the key if its value is me, removes the waiter and, with wake, wakes the next one. A
// failed attempt was never the holder whose release a waiter expects, so it only makes the first
// waiter try a little later, in case no other server wakes it.
func (d pendingRelease) call() redisconn.Call {
	most := "0"
	if d.wake {
		most = "8" // in a row whose sessions do not listen
	}
	return redisconn.Call{Keys: d.ticket.keys, Args: []string{d.me, d.waiter, setnx.ChannelPrefix, most}}
}

// endedRequests decreases open, when all results of the requests are noted.
func (s *session) endedRequests(i, n int) {
	s.mu.Lock()
	s.pending[i].open -= n
	s.mu.Unlock()
	s.signalSettled()
}

func (s *session) signalSettled() {
	select {
	case s.settled <- struct{}{}:
	default:
	}
}

// hasKey reports whether it is more than a place among the waiters.
func hasKey(d pendingRelease) bool { return d.me != "" }

// waitSettled waits until nothing is pending, or after nodeTimeout until only a minority has
// pending releases of keys.
func (s *session) waitSettled(ctx context.Context) error {
	timer := time.NewTimer(s.nodeTimeout)
	defer timer.Stop()
	for waited := false; ; {
		busy := 0
		s.mu.Lock()
		for i := range s.pending {
			if o := &s.pending[i]; o.open > 0 || o.releasing && (!waited || slices.ContainsFunc(o.list, hasKey)) {
				busy++
			}
		}
		s.mu.Unlock()
		if busy == 0 || waited && busy <= len(s.store.nodes)-s.store.quorum {
			return nil
		}
		select {
		case <-s.settled:
		case <-timer.C:
			waited = true
		case <-s.done.Done():
			return errors.New("the store is closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
