package serve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/hasplock/hasp/internal/httpapi"
)

// A proxy may lead each request to any of several servers. One that is about a session of another server is passed on to that one,
// with the client's token, and answered with its answer. So a session stays where it was opened for as long as that server can be
// reached, whichever of them its client comes to.
//
// The client's trust counts from before its own request, and so from before both others: a server more on the way changes nothing.
// A server that dies, or does not answer probes, is answered for by session-gone, as it would itself when started anew. Its clients
// then move to the server that they reach, which adopts what they hold: if the other one was only unreachable from here, what has left
// it is of no session there any more, and its client does not listen to it. A request that the other one may have got is answered by
// unknown first, and session-gone is for the next: see notPassedOn.
//
// Rejected: to redirect the client (proxies follow a redirect to addresses that clients do not reach, and each request would
// come twice); to keep sessions in the store (a write for each request, and two servers that renew one session).

// passedOn marks a request that comes from another server: it is passed on no further, so that two servers with a wrong idea
// of each other cannot send it around.
const passedOn = "Hasp-Passed-On"

// aboutSession reports a route that needs the session of the header.
func aboutSession(pattern string) bool {
	_, path, _ := strings.Cut(pattern, " ")
	return strings.HasPrefix(path, "/v1/locks/") || strings.HasPrefix(path, "/v1/session/") || pattern == "DELETE /v1/session"
}

// elsewhere returns the server of the request's session, nil if that is this one, or not known.
func (s *Server) elsewhere(c *call, pattern string) *peer {
	life := sessionLife(c.q.Header.Get(httpapi.SessionHeader))
	if s.peers == nil || life == "" || life == s.life || !aboutSession(pattern) || c.q.Header.Get(passedOn) != "" {
		return nil
	}
	if s.o.Tokens != nil && c.q.Header.Get("Authorization") == "" {
		return nil // a certificate is its connection's: the other server would see ours
	}
	return s.peers.find(c.ctx(), life)
}

// passOn has another server answer. An error is told instead of an answer.
func (s *Server) passOn(c *call, p *peer) (any, error) {
	_ = c.allow(longestWait + storeAnswer)
	ctx, done := p.use(c.ctx())
	defer done()
	q, err := http.NewRequestWithContext(ctx, c.q.Method, p.base.String()+c.q.URL.RequestURI(), bytes.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	for _, h := range []string{"Authorization", httpapi.SessionHeader, "Content-Type", "Traceparent"} {
		if v := c.q.Header.Get(h); v != "" {
			q.Header.Set(h, v)
		}
	}
	q.Header.Set(passedOn, s.life)
	s.meas.passedOn.Add(1)
	r, err := p.client.Do(q)
	if err != nil {
		return nil, notPassedOn(ctx, c.q, err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(io.LimitReader(r.Body, largestAnswer))
	if err != nil {
		return nil, notPassedOn(ctx, c.q, err)
	}
	for _, h := range []string{"Content-Type", "Retry-After", "WWW-Authenticate"} {
		if v := r.Header.Get(h); v != "" {
			c.w.Header().Set(h, v)
		}
	}
	c.w.WriteHeader(r.StatusCode)
	_, _ = c.w.Write(body) // to a client that may have gone
	return written, nil
}

// largestAnswer bounds what is read of one: 20,000 locks that are lost.
const largestAnswer = 64 << 20

// notPassedOn is the error of a request that another server has not answered. If that one could not be reached, its sessions are as good
// as forgotten, and it has not got the request. Nor does it matter whether it has got one that changes nothing. But a request
// that was sent before the probes failed may have been done, and by session-gone its client would take an entry that is there for one
// that was never made: a live server would free it later, under a client that had gone on with the same id. Such a request is
// answered by unknown. The server is then not known any more, and the repeated request is answered by session-gone.
func notPassedOn(ctx context.Context, q *http.Request, err error) error {
	var op *net.OpError
	notSent := errors.As(err, &op) && op.Op == "dial" && ctx.Err() == nil
	if notSent || changesNothing(q) && errors.Is(context.Cause(ctx), errPeerDown) {
		return httpapi.NewProblem(httpapi.SessionGone, "the server of this session cannot be reached from here: open another session")
	}
	return httpapi.NewProblem(httpapi.Unknown, fmt.Sprintf("the server of this session has not answered: %v", err))
}

// changesNothing reports a request about a session that neither makes nor removes anything (but a wait, if no request to acquire was
// answered, which is such a request then). Its client need not ask twice before its session moves: its locks may have little time left.
func changesNothing(q *http.Request) bool {
	path := q.URL.Path
	return q.Method == http.MethodGet || strings.HasSuffix(path, "/keepalive") || strings.HasSuffix(path, "/wait")
}
