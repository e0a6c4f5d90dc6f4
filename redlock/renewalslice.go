package redlock

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// slice is a part of a renewal: some locks, which every server is asked to extend at once.
type slice struct {
	*renewal
	sent   time.Time // before any request was
	kept   []kept
	call   redisconn.Call
	asked  []bool
	silent []bool // servers that have not answered, or were not asked
}

// slice prepares the requests for some locks. Only the first slice asks a server that owes
// answers from before: that one shows whether it is there again, and a server that hangs need
// not be given the others, too.
func (r *renewal) slice(tickets []*ticket, first bool) *slice {
	s := r.session
	nodes := len(s.store.nodes)
	x := &slice{
		renewal: r, asked: make([]bool, nodes), silent: slices.Repeat([]bool{true}, nodes),
		call: redisconn.Call{Args: []string{strconv.FormatInt(s.opts.TTL.Milliseconds(), 10)}},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range tickets {
		if !t.held {
			continue // it has left meanwhile
		}
		x.call.Keys = append(x.call.Keys, t.keys[0])
		x.call.Args = append(x.call.Args, t.me)
		x.kept = append(x.kept, kept{ticket: t, me: t.me})
	}
	for i, n := range s.store.nodes {
		x.asked[i] = len(x.kept) > 0 && (first || !n.silent(s.patience))
	}
	return x
}

// run asks the servers and returns when all have answered that are worth waiting for, a while
// after each lock's fate is known, or when ctx ends.
func (x *slice) run(ctx context.Context) {
	s := x.session
	type answer struct {
		node  int
		reply redisconn.Reply
	}
	answers := make(chan answer, len(s.store.nodes)) // one place for each: nobody may be left to read
	x.sent = time.Now()
	f := s.flight()
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
			enough = time.After(s.patience) // those who answer late are missed for once, no more
		}
		select {
		case a := <-answers:
			open--
			x.asked[a.node] = false
			x.count(a.node, a.reply)
		case <-enough:
			x.giveUp()
			return
		case <-ctx.Done():
			x.giveUp()
			return
		}
	}
}

// worthwhile reports whether a server has yet to answer that no slice has waited for in vain.
func (x *slice) worthwhile() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, waiting := range x.asked {
		if waiting && !x.tardy[i] {
			return true
		}
	}
	return false
}

// giveUp notes who has been waited for in vain.
func (x *slice) giveUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i, waiting := range x.asked {
		x.tardy[i] = x.tardy[i] || waiting
	}
}

// count notes a server's answer: the numbers of the locks that it does not have.
func (x *slice) count(node int, reply redisconn.Reply) {
	missing, ok := reply.Value.([]any)
	if reply.Err != nil || !ok {
		return // it has not said anything
	}
	x.silent[node] = false
	x.mu.Lock()
	x.heard[node] = true
	x.mu.Unlock()
	for k := range x.kept {
		if slices.Contains(missing, any(int64(k+1))) {
			x.kept[k].missing = append(x.kept[k].missing, node)
		} else {
			x.kept[k].extended++
		}
	}
}

func (x *slice) confirmed() bool {
	for _, k := range x.kept {
		if k.extended < x.session.store.quorum {
			return false
		}
	}
	return true
}

// conclude judges each lock. It is kept if a majority has extended it. It is lost if too
// few servers can have it for that: the others have said no, or have never had it. Else it is
// late, and the core makes another renewal. It reports whether a majority has answered.
func (x *slice) conclude() (heard bool) {
	s := x.session
	gone := map[string]error{}
	repairs := make([][]repair, len(s.store.nodes))
	unsure := 0
	s.mu.Lock()
	for _, k := range x.kept {
		if !k.held || k.ticket.me != k.me {
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
			k.giveUpLocked(true)
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
// majority has answered: then it is for where those locks are, and others may fare better.
func (x *slice) unsure() bool {
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
	x.apart = true
	return true
}
