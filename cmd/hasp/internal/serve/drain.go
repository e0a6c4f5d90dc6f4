package serve

import (
	"context"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

func draining() *httpapi.Problem {
	return httpapi.NewProblem(httpapi.Draining, "this server is about to end: ask again, or ask another")
}

func (s *Server) isDraining() bool { return s.drain.Err() != nil }

// Drain refuses new sessions and new locks, ends what waits, and returns when no session has a
// lock, or when ctx ends. Keep-alives and releases are served: what is held stays held, and can be
// given back.
func (s *Server) Drain(ctx context.Context) {
	s.startDrain()
	for tick := time.NewTicker(50 * time.Millisecond); s.holds() && ctx.Err() == nil; {
		s.forgetAdopted(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// adoptedAtOnce bounds how many names are read in each round of a drain.
const adoptedAtOnce = 20

// forgetAdopted forgets locks that another server has adopted. Their clients may have no way to say
// so: a proxy before both leads them to the other by now.
func (s *Server) forgetAdopted(ctx context.Context) {
	n := 0
	for _, x := range s.all() {
		for _, l := range x.heldLocks() {
			if n++; n > adoptedAtOnce {
				return
			}
			entries, err := s.o.Store.List(ctx, l.name, 0)
			if err == nil && !slices.ContainsFunc(entries, func(e driver.Entry) bool { return e.ID == l.entry }) {
				x.mu.Lock()
				x.dropLocked(l)
				x.mu.Unlock()
			}
		}
	}
}

func (s *Server) holds() bool {
	for _, x := range s.all() {
		x.mu.Lock()
		n := 0
		for _, l := range x.locks {
			if x.dead == nil && l.lost == "" {
				n++
			}
		}
		x.mu.Unlock()
		if n > 0 {
			return true
		}
	}
	return false
}
