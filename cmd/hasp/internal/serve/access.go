package serve

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/internal/httpapi"
)

// holder is who has sent a request. A web page in a browser of this machine can send requests here
// as well, also as another host if it lies about its own address (DNS rebinding): those are
// refused.
func (s *Server) holder(q *http.Request) (*access.Holder, error) {
	return s.holderBy(q, func(known *access.Tokens) (h *access.Holder, sent bool) {
		scheme, token, _ := strings.Cut(q.Header.Get("Authorization"), " ")
		if !strings.EqualFold(scheme, "Bearer") {
			return nil, false
		}
		return known.Find(strings.TrimSpace(token)), true
	})
}

// ofAnotherSite reports a request that a page of another site has made, also one that only reads:
// it could not see the answer, but have this server wait and read the store. To open an address of
// the page by a link from there is allowed.
func (s *Server) ofAnotherSite(q *http.Request) bool {
	if q.Method == http.MethodGet && q.Header.Get("Sec-Fetch-Mode") == "navigate" && q.Header.Get("Sec-Fetch-Dest") == "document" && !strings.HasPrefix(q.URL.Path, "/v1") {
		return false
	}
	any := *q
	any.Method = http.MethodPost // else what only reads is let through
	return s.origin.Check(&any) != nil
}

// holderBy finds who has sent a request by what shows a token; sent: there is one.
func (s *Server) holderBy(q *http.Request, find func(*access.Tokens) (h *access.Holder, sent bool)) (*access.Holder, error) {
	if s.ofAnotherSite(q) {
		return nil, httpapi.NewProblem(httpapi.Forbidden, "a page of another site has made this request")
	}
	known := s.knownTokens()
	if known == nil {
		if !httpapi.Here(q.Host) {
			return nil, httpapi.NewProblem(httpapi.Forbidden, "without tokens the server answers to this machine's names only (the header Host is another)")
		}
		return s.admitted(q, s.everyone), nil
	}
	h, sent := find(known)
	switch {
	case h != nil:
		return s.admitted(q, h), nil
	case sent:
		return nil, httpapi.NewProblem(httpapi.NoToken, "the token is not in the server's file")
	case q.TLS == nil || len(q.TLS.VerifiedChains) == 0:
		return nil, httpapi.NewProblem(httpapi.NoToken, "the request needs the header Authorization: Bearer TOKEN")
	}
	// A token counts for more than the certificate: one client of a connection may act for others.
	name := q.TLS.VerifiedChains[0][0].Subject.CommonName
	if h = known.FindCertificate(name); h == nil {
		return nil, httpapi.NewProblem(httpapi.NoToken, fmt.Sprintf("the certificate's common name %q is not in the server's file, and there is no header Authorization: Bearer TOKEN", name))
	}
	return s.admitted(q, h), nil
}

func (s *Server) knownTokens() *access.Tokens {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens
}

// admitted notes that a request's connection is no stranger's.
func (s *Server) admitted(q *http.Request, h *access.Holder) *access.Holder {
	if c, ok := q.Context().Value(connKey{}).(net.Conn); ok {
		s.conns.known(c)
	}
	return h
}

// servePage answers a request of the page. Who asks is known by the page's own cookie, which the
// API does not look at: no page of another site makes a request here that counts.
func (s *Server) servePage(w *reply, q *http.Request, r page.Route) {
	page.Protect(w.Header())
	h, refused := s.holderBy(q, s.page.Holder(q))
	if refused == nil {
		refused = s.admitRequest(h, r.Pattern)
		w.holder = h.Name
	}
	unknown := new(httpapi.Problem)
	if refused != nil && !(r.Open && errors.As(refused, &unknown) && unknown.Of(httpapi.NoToken)) {
		w.answer(0, nil, refused)
		return
	}
	answer, err := r.Do(w, q, h)
	w.answer(http.StatusOK, answer, err)
}

func (c *call) may(r access.Right, name string) error {
	if c.holder.May(r, name) {
		return nil
	}
	return httpapi.NewProblem(httpapi.Forbidden, fmt.Sprintf("token %q has not the right to %s %q", c.holder.Name, r, name))
}
