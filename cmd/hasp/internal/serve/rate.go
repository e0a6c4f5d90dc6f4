package serve

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/internal/httpapi"
)

// bucket is a token bucket (RFC 2697 has one): it has room for a second's requests, and fills as time goes by.
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

// unlimited are the operations that no rate bounds. Without them a client that asks too much would lose what it
// holds, or could not give it back: its locks would stay taken for longer, and the load with them. A session is
// opened to go on with what is held at another server; --max-sessions bounds that.
var unlimited = map[string]bool{
	"POST /v1/session":              true,
	"POST /v1/session/keepalive":    true,
	"GET /v1/session/events":        true,
	"DELETE /v1/session":            true,
	"DELETE /v1/locks/{number}":     true,
	"POST /v1/locks/{number}/adopt": true,
}

// admitRequest refuses a request that is one too many. Nothing was read of it, and nothing is changed.
func (s *Server) admitRequest(h *access.Holder, pattern string) (err error) {
	if s.o.Limits.Rate == 0 || unlimited[pattern] {
		return nil
	}
	s.count(h, func(u *usage) {
		if !u.take(time.Now(), s.o.Limits.Rate) {
			err = httpapi.NewProblem(httpapi.Limit, fmt.Sprintf("the token may make %d requests a second here: ask again a little later", s.o.Limits.Rate))
		}
	})
	return err
}
