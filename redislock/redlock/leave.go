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
// nil says that the key was on a majority as far as we know, and that a majority is free of it now.
// A key that a minority may still have is a pending release: it blocks no client, and is removed as
// soon as its server can be reached.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	t.leftLocked()
	key := t.pendingLocked(t.me, t.everHeld)
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
		case c == free && !t.waiterAt[i], c == asked:
			continue
		}
		at = append(at, i)
	}
	s.mu.Unlock()
	if len(at) > 0 {
		s.broadcast(ctx, setnx.Give, key.call(), at, func(i int, r redisconn.Reply) { t.noteReleased(i, key, r) })
	}
	err := t.verdictOfLeave()
	if err != nil && !errors.Is(err, driver.ErrGone) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// leftLocked makes sure that nothing is taken any more. An attempt under way releases its grants
// when it sees this.
func (t *ticket) leftLocked() {
	t.left, t.held = true, false
}

// noteReleased notes a server's answer to the release of its key.
func (t *ticket) noteReleased(i int, key pendingRelease, r redisconn.Reply) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Err == nil || redisconn.Answered(r.Err) != "" {
		t.waiterAt[i] = false
		t.noteReleasedLocked(i, key.me, r)
	} else if !redisconn.NotSent(r.Err) || t.claims[i] == leaving {
		s.addPendingLocked(i, key)
	}
}

func (t *ticket) noteReleasedLocked(i int, me string, r redisconn.Reply) {
	if t.me == me && t.claims[i] == leaving {
		t.claims[i] = free
		if r.Value == int64(1) {
			t.hadKey++
		}
	}
}

// verdictOfLeave decides by the servers that had the key and those that may still have it,
// with all that have answered by now, to whichever request.
func (t *ticket) verdictOfLeave() error {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	open, quorum, all := t.count(asked, leaving), s.store.quorum, len(s.store.nodes)
	switch {
	case !t.everHeld || t.gone || t.leaveAnswered:
		return driver.ErrGone
	case open >= quorum:
		return fmt.Errorf("%d of %d servers have not confirmed the release", open, all)
	}
	t.leaveAnswered = true
	if int(t.hadKey)+open < quorum {
		return fmt.Errorf("%w: %d of %d servers had it", driver.ErrGone, t.hadKey, all)
	}
	return nil
}

// broadcast makes one request to some servers, and returns as soon as a majority has answered
// yes, else after nodeTimeout: how many did, and how many may yet. each, if not nil, sees every
// reply, late ones included, before it is counted.
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
			case r.Err == nil || redisconn.Answered(r.Err) != "":
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
