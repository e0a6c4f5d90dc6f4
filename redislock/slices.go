package redislock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/hasplock/hasp/internal/keepalive"
	"github.com/hasplock/hasp/internal/redisconn"
)

// A renewal of many entries goes in slices. Each is answered by itself, so that what has been
// renewed when the time is over stays renewed. A slice is small, because a script keeps its
// server from everybody else: so many entries take about two milliseconds, of one name or of
// many.
const (
	sliceEntries = 256
	slicesAtOnce = 8
)

// sweep is a renewal of many entries.
type sweep struct {
	conn redisconn.Conn

	mu     sync.Mutex
	err    error    // the first, or the first that a server answered with
	apart  bool     // a server has refused, or has not answered anything while others have
	silent []string // homes that have not answered anything
}

// inSlices calls renew for the entries in their order, slice by slice, and is back when all have
// been asked for or ctx has ended. In a cluster each server has slices of its own: one that is
// silent must not cost the entries of the others their time. renew returns the error of a slice,
// or of a part of it. One without an answer ends the work for that server: what would be sent
// behind it would have none, either.
func inSlices[E any](ctx context.Context, conn redisconn.Conn, all []E, key func(E) string, renew func(context.Context, []E) error) *sweep {
	s := &sweep{conn: conn}
	homes := map[string][]E{"": all}
	if conn.Topology() == redisconn.Cluster {
		clear(homes)
		for _, e := range all {
			h := conn.NodeOf(ctx, key(e))
			homes[h] = append(homes[h], e)
		}
	}
	var wg sync.WaitGroup
	for home, entries := range homes {
		wg.Go(func() {
			answered := sliced(entries, func(slice []E) error {
				err := ctx.Err()
				if err == nil {
					err = renew(ctx, slice)
				}
				s.note(err)
				return err
			})
			if answered {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.apart = s.apart || len(homes) > 1
			s.silent = append(s.silent, home)
		})
	}
	wg.Wait()
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		// Connections that have not answered anything in the time that a renewal had are given
		// up: the next one must not hang on them, too. One that was cancelled says nothing of
		// them, and whoever has cancelled it is about to leave, or to close, over the same ones.
		for _, home := range s.silent {
			conn.Redial(home)
		}
	}
	return s
}

// sliced calls renew for slices of the entries until one is not answered. It reports whether any
// was.
func sliced[E any](entries []E, renew func([]E) error) bool {
	var answered atomic.Bool
	n := (len(entries) + sliceEntries - 1) / sliceEntries
	keepalive.Slices(n, slicesAtOnce, func(i int) bool {
		err := renew(entries[i*sliceEntries : min((i+1)*sliceEntries, len(entries))])
		heard := err == nil || redisconn.Answered(err) != ""
		if heard {
			answered.Store(true)
		}
		return heard
	})
	return answered.Load()
}

func (s *sweep) note(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := redisconn.Answered(err) != ""
	if s.err == nil || refused && !s.apart {
		s.err = err
	}
	s.apart = s.apart || refused
}
