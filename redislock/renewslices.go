package redislock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver/kit/keepalive"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// A renewal of many entries is sent in slices. Each has an answer, so that the entries that have
// been renewed when the time is over stay renewed. A slice is small, because a script blocks all
// other clients of its server: sliceEntries entries take about three milliseconds, of one name or
// of many.
const (
	sliceEntries = 350
	slicesAtOnce = 8
)

// slicedRenewal is the outcome of a renewal of many entries.
type slicedRenewal struct {
	mu           sync.Mutex
	err          error    // the first, or the first that a server answered with
	serverFailed bool     // a server has refused, or has not answered anything while others have
	silentNodes  []string // those that have not answered anything
}

// renewInSlices calls renew for the entries in their order, slice by slice, and returns when all
// requests are answered or ctx has ended. In a cluster each server has separate slices: a silent
// server must not use up the time of the others' entries. A missing answer ends the work for that
// server: a later request to it would have no answer, either. The tally has no entries yet.
func renewInSlices[E any](ctx context.Context, conn redisconn.Conn, ttl time.Duration, all []E, key func(E) string,
	renew func(context.Context, []E) []redisconn.Reply) keepalive.Tally {
	var s slicedRenewal
	byNode := map[string][]E{"": all}
	if conn.Topology() == redisconn.Cluster {
		clear(byNode)
		for _, e := range all {
			h := conn.NodeOf(ctx, key(e))
			byNode[h] = append(byNode[h], e)
		}
	}
	var wg sync.WaitGroup
	for node, entries := range byNode {
		chunks := slices.Collect(slices.Chunk(entries, sliceEntries))
		wg.Go(func() {
			var answered atomic.Bool
			keepalive.Slices(len(chunks), slicesAtOnce, func(i int) bool {
				if err := ctx.Err(); err != nil {
					return s.record(redisconn.Reply{Err: err})
				}
				if !s.record(renew(ctx, chunks[i])...) {
					return false
				}
				answered.Store(true)
				return true
			})
			if answered.Load() {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.serverFailed = s.serverFailed || len(byNode) > 1
			s.silentNodes = append(s.silentNodes, node)
		})
	}
	wg.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// Connections that have not answered anything during the whole renewal are dialled anew:
		// the next renewal must not hang on them, too. A cancelled renewal says nothing about its
		// connections, and its caller is about to leave, or to close, over the same ones.
		for _, node := range s.silentNodes {
			conn.Redial(node)
		}
	}
	return keepalive.Tally{TTL: ttl, Late: map[string]time.Duration{}, Err: redisconn.Refusal(s.err), ServerFailed: s.serverFailed}
}

// record reports whether there is no answer missing.
func (s *slicedRenewal) record(replies ...redisconn.Reply) (answered bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answered = true
	for _, r := range replies {
		if r.Err == nil {
			continue
		}
		refused := redisconn.Answered(r.Err) != ""
		if s.err == nil || refused && !s.serverFailed {
			s.err = r.Err
		}
		s.serverFailed = s.serverFailed || refused
		answered = answered && refused
	}
	return answered
}
