package redlock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// try makes one attempt: it asks every server at the same time, a majority decides, and a failed
// attempt releases its grants. established says that another client holds a
// majority, whose release will wake us.
func (t *ticket) try(ctx context.Context) (_ driver.Verdict, established bool, _ error) {
	s := t.session
	s.mu.Lock()
	switch {
	case t.left: // the session was closed after register
		s.mu.Unlock()
		return driver.Verdict{}, false, errSessionClosed
	case t.holdsLocked(): // the core has lost our answer; the session keeps the lock
		s.mu.Unlock()
		return driver.Verdict{Held: true}, true, nil
	}
	t.attempt++
	id := me(t.request, t.attempt)
	t.me = id
	t.announced.begin()
	yield := "" // a newcomer leaves a free lock to the waiters
	if t.attempt == 1 && !t.request.NoWait {
		yield = "yield"
	}
	began := time.Now() // for the pace of attempts, not for trust
	for {
		renewals, sent := s.renewals, bootclock.Now()
		votes := t.requestLocked(id, yield)
		s.mu.Unlock()
		c := s.collect(ctx, votes, t.request.ID)

		s.mu.Lock()
		switch {
		case t.left || t.me != id:
			t.abandonLocked(true)
			s.mu.Unlock()
			return driver.Verdict{}, false, errSessionClosed
		case c.granted < s.store.quorum:
			v, established, err := t.verdictLocked(c, time.Since(began))
			if ctx.Err() != nil {
				v, established, err = driver.Verdict{}, false, ctx.Err()
			}
			t.failLocked(err)
			s.mu.Unlock()
			return v, established, s.describeForeign(ctx, c, t.keys, err)
		case renewals == s.renewals:
			t.granted, t.collisions, t.renewed = true, 0, sent
			s.mu.Unlock()
			return driver.Verdict{Held: true}, true, nil
		}
		// A KeepAlive has begun that does not know of this ticket: ask again (see session).
		yield = ""
	}
}

// requestLocked sends a request for the key to every server that can be asked, and returns
// where their votes arrive.
func (t *ticket) requestLocked(me, yield string) *votes {
	s := t.session
	v := &votes{c: make(chan ballot, len(s.store.nodes))} // one slot for each: the reader may have gone
	f := s.requestGroup()
	defer f.done()
	for i, n := range s.store.nodes {
		if t.claims[i] == asked || n.silent(s.nodeTimeout) {
			continue
		}
		t.claims[i] = asked
		t.waiterAt[i] = t.waiterAt[i] || !t.request.NoWait
		s.pending[i].open++
		v.asked++
		call := t.takeCallLocked(me, t.member(), t.sinceLocked(i), yield)
		f.do(func(ctx context.Context) {
			b := readBallot(i, n.eval(ctx, setnx.Take, call))
			back := t.answered(me, b)
			v.c <- b
			if back {
				s.releaseLate(ctx, t, b, me)
			}
			s.endedRequests(i, 1)
		})
	}
	return v
}

// takeCallLocked asks for the key, or for a place among its waiters. A server orders them by its
// clock, and gets back the moment that it has answered before: by the clients' clocks, a client
// with a slow clock would be first each time, and all others would wait for ever.
func (t *ticket) takeCallLocked(me, waiter, since, yield string) redisconn.Call {
	return redisconn.Call{Keys: t.keys, Args: []string{
		me, strconv.FormatInt(t.session.opts.TTL.Milliseconds(), 10), "0", waiter, since, rest(t.request, t.publishedLocked()), yield,
	}}
}

func (t *ticket) sinceLocked(node int) string {
	if t.since == nil {
		return ""
	}
	return t.since[node]
}

// recordSinceLocked makes the list when it is needed: most locks have never waited, and for five
// servers it has 80 bytes.
func (t *ticket) recordSinceLocked(node int, since string) {
	if t.since == nil {
		t.since = make([]string, len(t.session.store.nodes))
	}
	t.since[node] = since
}

// claimOf is the claim that follows from a vote.
var claimOf = [...]claim{none: free, denied: free, abstains: free, granted: mine, unclear: maybe}

// answered notes a vote and reports that it comes too late: the attempt is over, or the ticket has
// left, and a grant must be released. So must the waiter's place that came with a refusal, if the
// ticket has left: a release would wake no client by it, and newcomers leave a free lock to it.
func (t *ticket) answered(me string, b ballot) (back bool) {
	t.session.mu.Lock()
	defer t.session.mu.Unlock()
	now := claimOf[b.vote]
	switch {
	case b.since != "":
		t.recordSinceLocked(b.node, b.since)
	case b.vote == unclear && t.sinceLocked(b.node) == "":
		t.recordSinceLocked(b.node, "?") // it may have made us a waiter: see take.lua
	}
	listed := t.left && t.waiterAt[b.node] && (b.vote == denied || b.vote == abstains)
	if b.vote == granted || listed {
		t.waiterAt[b.node] = false
	}
	if t.me != me {
		return now != free || listed
	}
	if now != free && t.left {
		t.claims[b.node] = leaving
		return true
	}
	t.claims[b.node] = now
	return listed
}

// releaseLate releases a late grant, or a place among the waiters. An uncertain grant, or a release
// without an answer, becomes a pending release. A server whose key was ours until we left has not
// woken a waiter for that yet, and does so now.
func (s *session) releaseLate(ctx context.Context, t *ticket, b ballot, me string) {
	s.mu.Lock()
	key := t.pendingLocked(me, t.granted && t.me == me)
	s.mu.Unlock()
	var r redisconn.Reply
	if b.vote != unclear {
		r = s.store.nodes[b.node].eval(ctx, setnx.Give, key.call())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case b.vote == unclear:
		key.absentRetries = maxAbsentRetries
		s.addPendingLocked(b.node, key)
	case r.Err != nil && redisconn.Answered(r.Err) == "":
		t.recordLostAnswerLocked(b.node, me, r)
		s.addPendingLocked(b.node, key)
	default:
		t.recordReleasedLocked(b.node, me, r)
	}
}

// abandonLocked ends an attempt, or the hold of a lost lock: each key that may be ours becomes a
// pending release now, and each request that is under way when it has been answered.
func (t *ticket) abandonLocked(wake bool) {
	for i, c := range t.claims {
		key := t.pendingLocked(t.me, wake)
		switch c {
		case mine:
			t.session.addPendingLocked(i, key)
		case maybe:
			key.absentRetries = maxAbsentRetries
			t.session.addPendingLocked(i, key)
		}
		t.claims[i] = free
	}
	t.me = ""
}

// votes are where the answers of one round arrive.
type votes struct {
	c     chan ballot
	asked int
}

// count has the answers of a round.
type count struct {
	granted int
	denied  []ballot
	own     int      // of those denied, by keys of an earlier attempt of ours
	closed  []ballot // servers that abstain
	errs    []ballot
	open    int // asked, and not answered
}

// collect returns as soon as the outcome is known, and otherwise after nodeTimeout or with the
// end of ctx. An answer that comes later is for ticket.answered.
func (s *session) collect(ctx context.Context, v *votes, id string) count {
	c := count{open: v.asked}
	timer := time.NewTimer(s.nodeTimeout)
	defer timer.Stop()
	for c.open > 0 && !c.decided(s.store.quorum) {
		select {
		case b := <-v.c:
			c.open--
			switch b.vote {
			case granted:
				c.granted++
			case denied:
				if b.id == id {
					c.own++
					b.holder = ""
				}
				c.denied = append(c.denied, b)
			case abstains:
				c.closed = append(c.closed, b)
			default:
				c.errs = append(c.errs, b)
			}
		case <-timer.C:
			return c
		case <-ctx.Done():
			return c
		}
	}
	return c
}

// decided says that more answers would change nothing: a majority is ours, or it cannot be
// any more and is known to be another client's.
func (c *count) decided(quorum int) bool {
	if c.granted >= quorum {
		return true
	}
	_, n := c.leader()
	return n >= quorum
}

// leader returns the value that is at most servers, and at how many; it is another client's.
func (c *count) leader() (value string, most int) {
	for i, b := range c.denied {
		n := 0
		for _, other := range c.denied[i:] {
			if other.holder == b.holder {
				n++
			}
		}
		if n > most && b.holder != "" {
			value, most = b.value, n
		}
	}
	return value, most
}

// verdictLocked makes the answer of an attempt that failed.
func (t *ticket) verdictLocked(c count, took time.Duration) (_ driver.Verdict, established bool, _ error) {
	s := t.session
	if c.foreign() > len(s.store.nodes)-s.store.quorum {
		return driver.Verdict{}, false, fmt.Errorf("%w: most servers have something else than a lock at the key of %q; choose a prefix or remove it",
			driver.ErrMismatch, t.request.Name)
	}
	if c.granted+len(c.denied)+len(c.closed) < s.store.quorum {
		return driver.Verdict{}, false, s.tooFewAnswers(c)
	}
	if left := c.quarantine(len(s.store.nodes) - s.store.quorum); left > 0 {
		return driver.Verdict{Quarantine: left, Retry: withJitter(left)}, true, nil
	}
	value, most := c.leader()
	if most >= s.store.quorum {
		t.collisions = 0
		h, ours := parse(t.request.Name, value)
		return driver.Verdict{Holder: h.entry.Owner, Retry: c.untilFree(s.store.quorum, ours)}, true, nil
	}
	if c.own > 0 && t.request.NoWait {
		// No other client is known to hold: that is no reason to say "busy".
		return driver.Verdict{}, false, fmt.Errorf("%d of %d servers still have the key of an attempt before, which is being given back", c.own, len(s.store.nodes))
	}
	return driver.Verdict{Retry: t.pause(c, took)}, false, nil
}

// describeForeign names the contents of one server's key in an error about foreign keys, at the
// price of one more request.
func (s *session) describeForeign(ctx context.Context, c count, keys []string, err error) error {
	if !errors.Is(err, driver.ErrMismatch) {
		return err
	}
	for _, b := range c.errs {
		if redisconn.Answered(b.err) != "WRONGTYPE" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, s.nodeTimeout)
		defer cancel()
		n := s.store.nodes[b.node]
		if what, _ := setnx.Describe(n.eval(ctx, setnx.Format, redisconn.Call{Keys: keys[:1]}).Value); what != "" {
			return fmt.Errorf("%w; %s has %s", err, n, what)
		}
		break
	}
	return err
}

// foreign counts the servers whose key is no string.
func (c *count) foreign() int {
	n := 0
	for _, b := range c.errs {
		if redisconn.Answered(b.err) == "WRONGTYPE" {
			n++
		}
	}
	return n
}

// tooFewAnswers is the error of an attempt that too few servers have answered.
func (s *session) tooFewAnswers(c count) error {
	all := len(s.store.nodes)
	errs := make([]error, all)
	for _, b := range c.errs {
		errs[b.node] = b.err
	}
	if why := s.store.reason(errs, all-s.store.quorum); why != nil {
		return fmt.Errorf("%d of %d servers have answered, and %d are needed (%w)", c.granted+len(c.denied), all, s.store.quorum, why)
	}
	return fmt.Errorf("%d of %d servers have answered within %s, and %d are needed", c.granted+len(c.denied), all, s.nodeTimeout, s.store.quorum)
}
