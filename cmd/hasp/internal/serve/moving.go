package serve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// adopt takes over another session's entry. Who may do that to any may also evict it; a client's
// own, of a session that its server has forgotten, it may always take.
func (s *Server) adopt(c *call, x *session) (any, error) {
	var in httpapi.AdoptLock
	number, r, err := s.entering(c, x, &in, &in.Acquire)
	if err != nil {
		return nil, err
	}
	if in.From = httpapi.Named(in.From, in.FromSession, in.FromLock); !driver.ValidID(in.From) {
		return nil, httpapi.NewProblem(httpapi.Invalid, "from is the id of an entry: letters, digits and '-', at most 40")
	}
	if err := c.may(access.Operate, r.Name); err != nil && !httpapi.Owns(in.From, in.FromSession, in.FromLock) {
		return nil, err
	}
	l, err := x.enter(number, r)
	if err != nil {
		return nil, err
	}
	a, ok := l.ticket.(driver.Adopter)
	if !ok {
		return nil, unsupported("cannot hand a held lock on")
	}
	var out httpapi.Lock
	err = x.use(c.q.Context(), l, func(ctx context.Context) error {
		// A number that waits adopts nothing, least of all itself. One whose PUT the store has not
		// answered may: every move comes so, and the store looks.
		if _, waits := x.standing(l); waits {
			return httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("lock %d of the session waits: adopt with a number that is new", number))
		}
		v, err := a.Adopt(ctx, in.From, in.Seq)
		v, err = x.note(l, v, err, true)
		out = answer(l, v)
		return err
	})
	x.dropGone(l, err)
	return orError(out, err)
}

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
