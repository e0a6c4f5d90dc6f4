package redislock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// Adopt takes over another session's entry in one script. The other session's renewals ask
// by the old id, find nothing and extend nothing: from here on the entry lives by ours.
//
// Replicas confirm it as they confirm a lock that is taken. A failover that forgets it brings
// the entry back under the id of its old owner, who does not renew it any more; our next
// renewal tells us.
func (t *ticket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	s := t.session
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	if err := s.register(t); err != nil {
		return driver.Verdict{}, err
	}
	r := t.request
	call := redisconn.Call{Keys: []string{t.key}, Args: []string{
		r.ID, id, strconv.FormatUint(seq, 10), strconv.FormatInt(r.Units, 10), strconv.FormatInt(r.Capacity, 10),
		s.ttl, s.queue.retention, s.id + " " + people(r),
	}}
	reply := s.queue.conn.Eval(ctx, adoptScript, call, s.queue.opts.Replicas)
	if reply.Err != nil {
		return driver.Verdict{}, wrongType(r.Name, reply.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close removed what this took
	case reply.Value != int64(1):
		s.goneLocked(t)
		return driver.Verdict{}, fmt.Errorf("%w: no such entry to take over", driver.ErrGone)
	}
	t.confirmed, t.held, t.seq = true, true, seq
	return t.verdict(0), nil
}
