package serve

import (
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/audit"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// The line of a token can be changed so that it may lock fewer names than before. Its sessions may
// have locks of the others by then: what is asked for each of them is refused as always (call.may),
// and here is the rest. What is held is told as lost in the answer to the next keep-alive, and stays
// in the store until no client can trust it any more. What waits is refused when it is granted.
//
// A token whose line has gone needs nothing: no request of it is answered, and its sessions end.
// Rejected: to look through all sessions when the file is read. A line that an editor has written
// half is another one a moment later, and would have cost the locks meanwhile.

// mayLock asks the tokens as they are now. One whose line has gone may what it could before.
func (s *session) mayLock(name string) bool {
	owner := s.owner
	if known := s.server.knownTokens(); known != nil {
		if now := known.Same(owner); now != nil {
			owner = now
		}
	}
	return owner.May(access.Lock, name)
}

func (s *session) mayNot(name string) *httpapi.Problem {
	return httpapi.NewProblem(httpapi.Forbidden, fmt.Sprintf("token %q has not the right to lock %q any more", s.owner.Name, name))
}

// revokeLocked tells the loss of what is held and may not be any more. The answers before this one
// have not told it, and a client that gets no other trusts them until then: so long the entries
// stay.
func (s *session) revokeLocked(until time.Time) {
	var all []*lock
	for _, l := range s.locks {
		if l.held && l.lost == "" && !s.mayLock(l.name) {
			s.forbidLocked(l)
			all = append(all, l)
		}
	}
	if len(all) > 0 {
		s.server.background.Go(func() { s.leaveAll(all, until) })
	}
}

// refuseGrant reports that the store has granted a lock that the token may not have, which then is
// left at once: its client was not told of the grant. One that was is for revokeLocked.
func (s *session) refuseGrant(l *lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.held || l.lost != "" || s.mayLock(l.name) {
		return false
	}
	s.forbidLocked(l)
	s.server.background.Go(func() { s.leaveAll([]*lock{l}, time.Time{}) })
	return true
}

func (s *session) forbidLocked(l *lock) {
	why := s.mayNot(l.name)
	l.lost = why.Detail
	s.countWaitingLocked(l, false)
	s.newsLocked(l)
	s.auditLocked(audit.Loss, l, why)
	if l.held {
		s.server.page.Lost(page.Loss{Name: l.name, Token: s.owner.Name, Why: l.lost, At: time.Now()})
	}
}

// leaveAll frees what was taken from a client, from until on. The session's keep-alives renew the
// entries till then, and after a Leave that has failed.
func (s *session) leaveAll(all []*lock, until time.Time) {
	over := s.server.over
	for wait := time.Until(until); ; wait = time.Second {
		select {
		case <-time.After(wait):
		case <-over.Done():
			return
		}
		var left []*lock
		for _, l := range all {
			err := s.use(over, l, l.ticket.Leave)
			if err != nil && !errors.Is(err, driver.ErrGone) && !errors.Is(err, driver.ErrForgotten) {
				left = append(left, l)
			}
		}
		if all = left; len(all) == 0 || s.state() != nil { // with a session that has ended its entries go
			return
		}
	}
}
