package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// renewalSlice is a part of a renewal: some locks, which every server is asked to extend at once.
type renewalSlice struct {
	*renewal
	sent   bootclock.Instant // before any request was
	locks  []renewedLock
	call   redisconn.Call
	asked  []bool
	silent []bool // servers that have not answered, or were not asked
}

// slice prepares the requests for some locks. Only the first slice asks a server that has not sent
// earlier answers: that one shows whether it is there again, and a server that hangs need
// not be given the others, too.
func (r *renewal) slice(tickets []*ticket, first bool) *renewalSlice {
	s := r.session
	nodes := len(s.store.nodes)
	x := &renewalSlice{
		renewal: r, asked: make([]bool, nodes), silent: slices.Repeat([]bool{true}, nodes),
		call: redisconn.Call{Args: []string{strconv.FormatInt(s.opts.TTL.Milliseconds(), 10)}},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tickets {
		if !t.holdsLocked() {
			continue // it has left meanwhile
		}
		x.call.Keys = append(x.call.Keys, t.keys[0])
		x.call.Args = append(x.call.Args, t.me)
		x.locks = append(x.locks, renewedLock{ticket: t, me: t.me})
	}
	for i, n := range s.store.nodes {
		x.asked[i] = len(x.locks) > 0 && (first || !n.silent(s.nodeTimeout))
	}
	return x
}

// run asks the servers and returns when all that have been in time so far have answered, a while
// after the outcome for each lock is known, or when ctx ends.
func (x *renewalSlice) run(ctx context.Context) {
	s := x.session
	type answer struct {
		node  int
		reply redisconn.Reply
	}
	answers := make(chan answer, len(s.store.nodes)) // one slot for each: the reader may have gone
	x.sent = bootclock.Now()
	f := s.requestGroup()
	open := 0
	for i, n := range s.store.nodes {
		if x.asked[i] {
			open++
			f.do(func(ctx context.Context) { answers <- answer{i, n.eval(ctx, setnx.Extend, x.call)} })
		}
	}
	f.done()
	var enough <-chan time.Time
	for open > 0 && !(x.confirmed() && !x.worthwhile()) {
		if enough == nil && x.confirmed() {
			enough = time.After(s.nodeTimeout) // servers that answer late are left out only this once
		}
		select {
		case a := <-answers:
			open--
			x.asked[a.node] = false
			x.count(a.node, a.reply)
		case <-enough:
			x.recordSlow()
			return
		case <-ctx.Done():
			x.recordSlow()
			return
		}
	}
}

// worthwhile reports whether a server has yet to answer that has answered every slice in time.
func (x *renewalSlice) worthwhile() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, waiting := range x.asked {
		if waiting && !x.slow[i] {
			return true
		}
	}
	return false
}

// recordSlow records the servers that have not answered in time.
func (x *renewalSlice) recordSlow() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, waiting := range x.asked {
		x.slow[i] = x.slow[i] || waiting
	}
}

// count notes a server's answer: the numbers of the locks that it does not have.
func (x *renewalSlice) count(node int, reply redisconn.Reply) {
	missing, ok := reply.Value.([]any)
	if reply.Err != nil || !ok {
		return // it has not answered
	}
	x.silent[node] = false
	x.mu.Lock()
	x.answered[node] = true
	x.mu.Unlock()
	for k := range x.locks {
		if slices.Contains(missing, any(int64(k+1))) {
			x.locks[k].missing = append(x.locks[k].missing, node)
		} else {
			x.locks[k].extended++
		}
	}
}

func (x *renewalSlice) confirmed() bool {
	for _, k := range x.locks {
		if k.extended < x.session.store.quorum {
			return false
		}
	}
	return true
}

// conclude decides about each lock. It is kept if a majority has extended it. It is lost if too
// few servers can have it for that: the others have answered no, or have never had it. Otherwise
// it is late, and the core makes another renewal. It reports whether a majority has answered.
func (x *renewalSlice) conclude() (answered bool) {
	s := x.session
	gone := map[string]error{}
	repairs := make([][]repair, len(s.store.nodes))
	unsure := 0
	s.mu.Lock()
	for _, k := range x.locks {
		if !k.holdsLocked() || k.ticket.me != k.me {
			continue // it has left meanwhile
		}
		for _, i := range k.missing {
			if c := k.claims[i]; c == mine || c == maybe {
				k.claims[i] = free
			}
		}
		possible := k.extended
		for i, silent := range x.silent {
			if silent && k.claims[i] != free {
				possible++
			}
		}
		switch {
		case k.extended >= s.store.quorum:
			k.renewed = x.sent
			k.repairLocked(k.missing, repairs)
		case possible < s.store.quorum:
			gone[k.request.ID] = fmt.Errorf("%w: %d of %d servers had the key at the renewal", driver.ErrGone, k.extended, len(s.store.nodes))
			k.gone = true
			k.abandonLocked(true)
			delete(s.tickets, k.request.ID)
		default:
			unsure++
		}
	}
	s.mu.Unlock()
	for id, err := range gone {
		s.opts.Gone(id, err)
	}
	s.repair(repairs)
	return unsure == 0 || x.unsure()
}

// unsure notes that locks of the slice were neither renewed nor lost, and reports whether a
// majority has answered: then only the servers of those locks are the reason, and others may be
// renewed.
func (x *renewalSlice) unsure() bool {
	answered := 0
	for _, silent := range x.silent {
		if !silent {
			answered++
		}
	}
	s := x.session
	x.mu.Lock()
	defer x.mu.Unlock()
	x.err = fmt.Errorf("%d of %d servers have answered, and %d are needed that have the lock", answered, len(x.silent), s.store.quorum)
	if answered < s.store.quorum {
		return false
	}
	x.serverFailed = true
	return true
}
