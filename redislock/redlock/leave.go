package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// Leave releases the key on all servers. A request for the key that is under way is released by
// its goroutine when it has been answered.
//
// nil says that the key was on a majority as far as we know, and that a majority is free of it now;
// ErrForgotten that it is gone, and that lost answers would say whether we have removed it.
// A key that a minority may still have is a pending release: it blocks no client, and is removed as
// soon as its server can be reached.
//
// A server answers only one release of a key with yes. So a repeated Leave does not ask again where
// a release is under way or pending: the second answer, that there is no key, could come first.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, began := t.session, time.Now()
	s.mu.Lock()
	t.left = true
	key := t.pendingLocked(t.me, t.granted)
	delete(s.tickets, t.request.ID)
	var at []int
	for i, c := range t.claims {
		switch {
		case c == maybe, c == mine && s.store.nodes[i].silent(s.nodeTimeout):
			t.claims[i] = leaving
			unsure := key
			if c == maybe {
				unsure.absentRetries = maxAbsentRetries
			}
			s.addPendingLocked(i, unsure)
			continue
		case c == mine:
			t.claims[i] = leaving
		case c == asked, c.leaves(), !t.waiterAt[i]:
			continue
		}
		at = append(at, i)
	}
	s.mu.Unlock()
	if len(at) > 0 {
		s.broadcast(ctx, setnx.Give, key.call(), at, func(i int, r redisconn.Reply) { t.recordReleased(i, key, r) })
	}
	t.awaitReleases(ctx, s.nodeTimeout-time.Since(began))
	err := t.verdictOfLeave()
	if err != nil && !errors.Is(err, driver.ErrGone) && !errors.Is(err, driver.ErrForgotten) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// failLocked ends an attempt that has failed. If the first one is refused, the core takes the
// request for one that has changed nothing, and calls no Leave: the ticket leaves by itself.
func (t *ticket) failLocked(err error) {
	// A waiter that may have seen us on a majority waits for our release.
	wake := t.count(asked, mine, maybe) >= t.session.store.quorum
	refused := errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrMismatch) || errors.Is(err, driver.ErrInvalid)
	if refused && (t.attempt == 1 || t.request.NoWait) {
		t.dropLocked(wake)
		return
	}
	t.abandonLocked(wake)
}

// dropLocked takes the ticket out without a call of Leave. Its keys, and its places among the
// waiters, are given back in the background.
func (t *ticket) dropLocked(wake bool) {
	s := t.session
	t.left = true
	delete(s.tickets, t.request.ID)
	for i, listed := range t.waiterAt {
		if listed && t.claims[i] == free { // else with the key, or when the request is answered
			s.addPendingLocked(i, t.pendingLocked("", false))
		}
	}
	t.abandonLocked(wake)
}

// recordReleased notes a server's answer to the release of its key.
func (t *ticket) recordReleased(i int, key pendingRelease, r redisconn.Reply) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case redisconn.RefusedNow(r.Err):
		// The server has the key as before, so that it counts neither as one that has given it up
		// nor as one that has not had it.
		if t.claims[i].leaves() {
			s.addPendingLocked(i, key) // no answer is lost
		}
	case r.Err == nil || redisconn.Answered(r.Err) != "":
		t.waiterAt[i] = false
		t.recordReleasedLocked(i, key.me, r)
	case !redisconn.NotSent(r.Err) || t.claims[i].leaves():
		t.recordLostAnswerLocked(i, key.me, r)
		s.addPendingLocked(i, key)
	}
}

func (t *ticket) recordReleasedLocked(i int, me string, r redisconn.Reply) {
	if t.me != me || !t.claims[i].leaves() {
		return
	}
	switch c := &t.claims[i]; {
	case r.Value == int64(1):
		*c = removed
	case *c == doubtful:
		*c = perhaps
	default:
		*c = free
	}
	t.signal.Notify()
}

// recordLostAnswerLocked notes that a release that is repeated may have removed the key.
func (t *ticket) recordLostAnswerLocked(i int, me string, r redisconn.Reply) {
	if t.me == me && t.claims[i] == leaving && !redisconn.NotSent(r.Err) {
		t.claims[i] = doubtful
	}
}

// recordDroppedLocked notes that a release is not repeated any more, without an answer: the key has
// expired, or the next Leave asks again.
func (t *ticket) recordDroppedLocked(i int, me string) {
	switch {
	case t.me != me:
	case t.claims[i] == doubtful:
		t.claims[i] = perhaps
	case t.claims[i] == leaving:
		t.claims[i] = mine
	}
}

// unconfirmedLocked is how many servers have not confirmed the release yet.
func (t *ticket) unconfirmedLocked() int { return t.count(asked, leaving, doubtful, mine) }

// awaitReleases waits for the releases that are under way or pending, until the outcome is known.
func (t *ticket) awaitReleases(ctx context.Context, most time.Duration) {
	s := t.session
	var over <-chan time.Time
	for {
		s.mu.Lock()
		open := t.granted && !t.gone && t.unconfirmedLocked() >= s.store.quorum
		s.mu.Unlock()
		if !open {
			return
		}
		if over == nil { // mostly the majority has confirmed it, and no timer is needed
			timer := time.NewTimer(most)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-t.signal.C(): // which wakes no waiter any more
		case <-over:
			return
		case <-s.done.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// verdictOfLeave decides by the servers that had the key and those that may still have it,
// with all that have answered by now, to whichever request.
func (t *ticket) verdictOfLeave() error {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	open, quorum, all := t.unconfirmedLocked(), s.store.quorum, len(s.store.nodes)
	switch {
	case !t.granted || t.gone:
		return driver.ErrGone
	case open >= quorum:
		return fmt.Errorf("%d of %d servers have not confirmed the release", open, all)
	}
	t.gone = true
	switch had, perhaps := t.count(removed), t.count(perhaps); {
	case had+open >= quorum:
		return nil
	case had+perhaps+open >= quorum:
		return fmt.Errorf("%w: %d of %d servers had it, and the answers of %d are lost", driver.ErrForgotten, had, all, perhaps)
	default:
		return fmt.Errorf("%w: %d of %d servers had it", driver.ErrGone, had, all)
	}
}

// broadcast makes one request to some servers, and returns as soon as a majority has answered yes,
// else after nodeTimeout: how many did, and how many may have the key all the same. A server that
// refuses, with full memory or while it loads its file, says nothing about the key; one whose key
// is no string does not have it. each, if not nil, sees every reply, late ones included, before it
// is counted.
func (s *session) broadcast(ctx context.Context, script *redisconn.Script, call redisconn.Call, at []int, each func(int, redisconn.Reply)) (yes, open int) {
	replies := make(chan redisconn.Reply, len(at)) // one slot for each: the reader may have gone
	s.mu.Lock()
	for _, i := range at {
		s.pending[i].open++
	}
	s.mu.Unlock()
	f := s.requestGroup()
	for _, i := range at {
		f.do(func(ctx context.Context) {
			r := s.store.nodes[i].eval(ctx, script, call)
			if each != nil {
				each(i, r)
			}
			s.endedRequests(i, 1)
			replies <- r
		})
	}
	f.done()
	timer := time.NewTimer(s.nodeTimeout)
	defer timer.Stop()
	open = len(at)
	for n := 0; n < len(at) && yes < s.store.quorum; n++ {
		select {
		case r := <-replies:
			switch {
			case r.Err == nil && r.Value == int64(1):
				yes++
				open--
			case r.Err == nil || redisconn.Answered(r.Err) == "WRONGTYPE":
				open--
			}
		case <-timer.C:
			n = len(at)
		case <-ctx.Done():
			n = len(at)
		}
	}
	return yes, open
}
