package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// keysPerCall bounds how long one renewal keeps a server from everybody else.
const keysPerCall = 256

// KeepAlive extends what is held, on every server, and is good if each lock has been
// extended on a majority. Without locks there is nothing to send: who waits has nothing at
// the servers that a renewal would keep.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	r, err := s.renewal()
	if err != nil || len(r.kept) == 0 {
		return s.opts.TTL, err
	}
	r.run(ctx)
	return s.opts.TTL, r.conclude(ctx)
}

// kept is a lock that was held when a renewal began.
type kept struct {
	*ticket
	me       string
	extended int
	missing  []int // servers that have answered, and do not have it
}

// renewal is one KeepAlive.
type renewal struct {
	session *session
	kept    []kept
	calls   []redisconn.Call
	silent  []bool // servers that have not answered
}

func (s *session) renewal() (*renewal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errSessionClosed
	}
	s.renewals++ // before anything is sent: see session
	r := &renewal{session: s, silent: slices.Repeat([]bool{true}, len(s.store.nodes))}
	for _, t := range s.tickets {
		if !t.held {
			continue
		}
		if len(r.kept)%keysPerCall == 0 {
			r.calls = append(r.calls, redisconn.Call{Args: []string{strconv.FormatInt(s.opts.TTL.Milliseconds(), 10)}})
		}
		c := &r.calls[len(r.calls)-1]
		c.Keys = append(c.Keys, t.keys[0])
		c.Args = append(c.Args, t.me)
		r.kept = append(r.kept, kept{ticket: t, me: t.me})
	}
	return r, nil
}

// run asks all servers and returns when all have answered, a while after each lock's fate
// is known, or when ctx ends. Connections that have not answered by then are given up: the
// next renewal must not hang on them, too.
func (r *renewal) run(ctx context.Context) {
	s := r.session
	type answer struct {
		node    int
		replies []redisconn.Reply
	}
	answers := make(chan answer, len(s.store.nodes)) // one place for each: nobody may be left to read
	f := s.flight()
	for i, n := range s.store.nodes {
		f.do(func(ctx context.Context) { answers <- answer{i, n.evalAll(ctx, setnx.Extend, r.calls)} })
	}
	f.done()
	var enough <-chan time.Time
	for range s.store.nodes {
		select {
		case a := <-answers:
			r.count(a.node, a.replies)
			if enough == nil && r.confirmed() {
				enough = time.After(s.patience) // those who answer late are missed for once, no more
			}
		case <-enough:
			return
		case <-ctx.Done():
			// Not if the session is at its end: it is giving back over the same connections.
			for i, n := range s.store.nodes {
				if r.silent[i] && errors.Is(ctx.Err(), context.DeadlineExceeded) {
					n.conn.Redial("")
				}
			}
			return
		}
	}
}

// count notes a server's answer: the numbers of the locks that it does not have.
func (r *renewal) count(node int, replies []redisconn.Reply) {
	for i, reply := range replies {
		batch := r.kept[i*keysPerCall : min((i+1)*keysPerCall, len(r.kept))]
		missing, ok := reply.Value.([]any)
		if reply.Err != nil || !ok {
			return // it has not said anything about these, nor about the rest
		}
		for k := range batch {
			if slices.Contains(missing, any(int64(k+1))) {
				batch[k].missing = append(batch[k].missing, node)
			} else {
				batch[k].extended++
			}
		}
	}
	r.silent[node] = false
}

func (r *renewal) confirmed() bool {
	for _, k := range r.kept {
		if k.extended < r.session.store.quorum {
			return false
		}
	}
	return true
}

// conclude judges each lock. It is kept if a majority has extended it. It is lost if too
// few servers can have it for that: the others have said no, or have never had it. Else the
// renewal as a whole is not confirmed, and the core makes another.
func (r *renewal) conclude(ctx context.Context) error {
	s := r.session
	gone := map[string]error{}
	repairs := make([][]repair, len(s.store.nodes))
	unsure := 0
	s.mu.Lock()
	for _, k := range r.kept {
		if !k.held || k.ticket.me != k.me {
			continue // it has left meanwhile
		}
		for _, i := range k.missing {
			if c := k.claims[i]; c == mine || c == maybe {
				k.claims[i] = free
			}
		}
		possible := k.extended
		for i, silent := range r.silent {
			if silent && k.claims[i] != free {
				possible++
			}
		}
		switch {
		case k.extended >= s.store.quorum:
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
	if unsure == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%w: %s", err, s.unanswered(r.silent))
	}
	return errors.New(s.unanswered(r.silent))
}

func (s *session) unanswered(silent []bool) string {
	n := 0
	for _, b := range silent {
		if !b {
			n++
		}
	}
	return fmt.Sprintf("%d of %d servers have answered, and %d are needed", n, len(silent), s.store.quorum)
}

// repair is a key to be set where it is missing.
type repair struct {
	*ticket
	me   string
	call redisconn.Call
}

// repairLocked notes where a lock that a majority has just confirmed is missing: at a server
// that was away when it was taken, or restarted without its data. Setting it there again
// makes up for the vote, so that other servers may fail.
//
// It is safe because it never counts for the renewal that finds it missing, only for the
// next. Between the two the majority that was just confirmed has our key, and nobody else
// can have one: so whoever finds our key on a majority the next time, with the repaired
// among it, looks back on a majority without a gap. Had it counted at once, a lock that was
// lost and taken and given back by another meanwhile would have come to life again (S6).
// And it is a request like any other for the key: it gets no key that somebody else has,
// and what it gets too late, after the lock was left, is given back.
func (t *ticket) repairLocked(missing []int, repairs [][]repair) {
	for _, i := range missing {
		if t.claims[i] == free && !t.session.store.nodes[i].silent(t.session.patience) {
			t.claims[i] = asked
			t.session.debts[i].open++
			repairs[i] = append(repairs[i], repair{t, t.me, t.takeCall(t.me, "", "")})
		}
	}
}

// repair sends the requests, one flight for each server, and waits for none.
func (s *session) repair(repairs [][]repair) {
	f := s.flight()
	defer f.done()
	for i, list := range repairs {
		if len(list) == 0 {
			continue
		}
		calls := make([]redisconn.Call, len(list))
		for k, x := range list {
			calls[k] = x.call
		}
		f.do(func(ctx context.Context) {
			for k, r := range s.store.nodes[i].evalAll(ctx, setnx.Take, calls) {
				b := readBallot(i, r)
				if x := list[k]; x.answered(x.me, b) {
					s.giveBack(ctx, x.ticket, b, x.me)
				}
			}
			s.endedRequests(i, len(list))
		})
	}
}
