package redislock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Adopt takes over the key of another session. From then on the key has our value: the other
// session's renewals and its Leave compare with theirs, and find that they hold nothing. Other
// libraries see a lock that stays held. The key gets a whole TTL from now, as when it is taken;
// if the request arrives after we have given up, no client renews it.
//
// A lease must have a token if this session keeps counters, and none if it does not: otherwise
// the other session has another setting for fence, and its token means nothing here.
func (t *oneKeyTicket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	s, r := t.session, t.request
	d := s.store.dialect
	if r.Units != driver.Whole || r.Capacity != driver.Whole || (seq != 0) != s.store.Traits().Fencing {
		return driver.Verdict{}, errNoEntry
	}
	keys, err := s.store.keys(r.Name)
	if err == nil {
		err = t.register(keys, false)
	}
	if err != nil {
		return driver.Verdict{}, err
	}
	args := append([]string{d.me(t), millis(s.opts.TTL), id, strconv.FormatUint(seq, 10), s.counter}, holderArgs(t)...)
	reply := s.store.guard.Eval(ctx, d.adopt, redisconn.Call{Keys: keys, Args: args}, s.store.opts.Replicas)
	if reply.Err != nil {
		err := wrongType(r.Name, reply.Err)
		t.recordFailure(err) // after a refusal the core calls no Leave
		return driver.Verdict{}, describeForeign(ctx, s.store.conn, s.store.opts.Strategy, keys[0], err)
	}
	if left, closed := reply.Value.([]any); closed && len(left) == 1 {
		err := quarantine.Refusal(left[0])
		t.recordFailure(err)
		return driver.Verdict{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close gave back what this took
	case reply.Value != int64(1):
		t.gone, t.sent = true, false
		delete(s.tickets, r.ID)
		return driver.Verdict{}, errNoEntry
	}
	t.held = true
	return driver.Verdict{Held: true, Token: seq}, nil
}

var errNoEntry = fmt.Errorf("%w: no such entry to take over", driver.ErrGone)
