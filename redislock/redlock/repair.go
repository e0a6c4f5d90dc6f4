package redlock

import (
	"context"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

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
// next. Between the two the majority that was just confirmed has our key, and no other client
// can have one. So if the next renewal finds our key on a majority, the repaired one included, our
// key was on a majority without a gap. If the repair counted at once, a lock that was lost, and
// taken and released by another client meanwhile, would be revived (S6). And it is a request like
// any other for the key: it takes no key of another client, and releases a key that it gets after
// the ticket has left.
func (t *ticket) repairLocked(missing []int, repairs [][]repair) {
	for _, i := range missing {
		if t.claims[i] == free && !t.session.store.nodes[i].silent(t.session.nodeTimeout) {
			t.claims[i] = asked
			t.session.pending[i].open++
			repairs[i] = append(repairs[i], repair{t, t.me, t.takeCallLocked(t.me, "", "", "")})
		}
	}
}

// repair sends the requests, one pipeline for each server, and waits for none.
func (s *session) repair(repairs [][]repair) {
	f := s.requestGroup()
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
					s.releaseLate(ctx, x.ticket, b, x.me)
				}
			}
			s.endedRequests(i, len(list))
		})
	}
}
