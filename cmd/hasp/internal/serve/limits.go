package serve

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/internal/httpapi"
)

// Limits bound what a token's holder can make the server keep.
type Limits struct {
	Sessions int           // of a token
	Locks    int           // of a token, in all its sessions
	Waiting  int           // of a token, in queues
	Rate     int           // requests a second of a token; 0: any
	TTL      time.Duration // the longest that a client may ask for
}

// Defaults are the limits if nothing else is said.
var Defaults = Limits{Sessions: 10000, Locks: 20000, Waiting: 20000, TTL: time.Minute}

// usage counts what the holder of a token uses.
type usage struct {
	sessions, locks, waiting int
	bucket
}

// bucket is a token bucket (RFC 2697 has one): it has room for a second's requests, and fills as
// time goes by.
type bucket struct {
	spent float64 // requests that the time since has not made up for
	since time.Time
}

// take reports whether one more request may come, at so many a second.
func (b *bucket) take(now time.Time, rate int) bool {
	b.spent = max(0, b.spent-now.Sub(b.since).Seconds()*float64(rate))
	b.since = now
	if b.spent+1 > float64(max(rate, 1)) {
		return false
	}
	b.spent++
	return true
}

// unlimited are the operations that no rate bounds. Without them a client that asks too much would
// lose what it holds, or could not give it back: its locks would stay taken for longer, and the
// load with them. A session is opened to go on with what is held at another server; --max-sessions
// bounds that.
var unlimited = map[string]bool{
	"POST /v1/session":              true,
	"POST /v1/session/keepalive":    true,
	"GET /v1/session/events":        true,
	"DELETE /v1/session":            true,
	"DELETE /v1/locks/{number}":     true,
	"POST /v1/locks/{number}/adopt": true,
}

// count changes what a holder uses.
func (s *Server) count(h *access.Holder, change func(*usage)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.usage[h.Name]
	if u == nil {
		u = &usage{}
		s.usage[h.Name] = u
	}
	change(u)
}

func limit(format string, args ...any) error {
	return httpapi.NewProblem(httpapi.Limit, fmt.Sprintf(format, args...))
}

// admitRequest refuses a request that is one too many. Nothing was read of it, and nothing is
// changed.
func (s *Server) admitRequest(h *access.Holder, pattern string) (err error) {
	if s.o.Limits.Rate == 0 || unlimited[pattern] {
		return nil
	}
	s.count(h, func(u *usage) {
		if !u.take(time.Now(), s.o.Limits.Rate) {
			err = limit("the token may make %d requests a second here: ask again a little later", s.o.Limits.Rate)
		}
	})
	return err
}

func (s *Server) admitSession(h *access.Holder) (err error) {
	if s.isDraining() {
		return draining()
	}
	s.count(h, func(u *usage) {
		if u.sessions >= s.o.Limits.Sessions {
			err = limit("the token has %d sessions here, and may have no more", u.sessions)
			return
		}
		u.sessions++
	})
	return err
}

func (s *Server) admitLock(h *access.Holder) (err error) {
	s.count(h, func(u *usage) {
		switch {
		case u.locks >= s.o.Limits.Locks:
			err = limit("the token has %d locks here, and may have no more", u.locks)
		case u.waiting >= s.o.Limits.Waiting:
			err = limit("%d locks of the token wait, and no more may", u.waiting)
		default:
			u.locks++
		}
	})
	return err
}

// admitWatch counts a watch, or an open page, as one that waits, until release is called.
func (s *Server) admitWatch(h *access.Holder) (release func(), err error) {
	s.count(h, func(u *usage) {
		if u.waiting >= s.o.Limits.Waiting {
			err = limit("%d locks and watches of the token wait, and no more may", u.waiting)
			return
		}
		u.waiting++
	})
	return func() { s.count(h, func(u *usage) { u.waiting-- }) }, err
}
