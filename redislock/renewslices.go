package redislock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hasplock/hasp/internal/keepalive"
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
	conn redisconn.Conn

	mu           sync.Mutex
	err          error    // the first, or the first that a server answered with
	serverFailed bool     // a server has refused, or has not answered anything while others have
	silentNodes  []string // those that have not answered anything
}

// renewInSlices calls renew for the entries in their order, slice by slice, and returns when all
// requests are answered or ctx has ended. In a cluster each server has separate slices: a silent
// server must not use up the time of the others' entries. renew returns the error of a slice, or
// of a part of it. A missing answer ends the work for that server: a later request to it would
// have no answer, either.
func renewInSlices[E any](ctx context.Context, conn redisconn.Conn, all []E, key func(E) string, renew func(context.Context, []E) error) *slicedRenewal {
	s := &slicedRenewal{conn: conn}
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
		wg.Go(func() {
			answered := renewSlices(entries, func(slice []E) error {
				err := ctx.Err()
				if err == nil {
					err = renew(ctx, slice)
				}
				s.record(err)
				return err
			})
			if answered {
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
	return s
}

// renewSlices calls renew for slices of the entries until one is not answered. It reports whether
// any was.
func renewSlices[E any](entries []E, renew func([]E) error) bool {
	var answered atomic.Bool
	n := (len(entries) + sliceEntries - 1) / sliceEntries
	keepalive.Slices(n, slicesAtOnce, func(i int) bool {
		err := renew(entries[i*sliceEntries : min((i+1)*sliceEntries, len(entries))])
		ok := err == nil || redisconn.Answered(err) != ""
		if ok {
			answered.Store(true)
		}
		return ok
	})
	return answered.Load()
}

func (s *slicedRenewal) record(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := redisconn.Answered(err) != ""
	if s.err == nil || refused && !s.serverFailed {
		s.err = err
	}
	s.serverFailed = s.serverFailed || refused
}
