package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/internal/httpapi"
)

const (
	largestBody = 16 << 10
	writeSlack  = 10 * time.Second // for the answer's way to a slow reader
)

// route is one operation of the API.
type route struct {
	pattern string // of http.ServeMux
	do      func(*Server, *call) (any, error)
}

// api has every operation that needs a token; openapi.json describes each.
var api = []route{
	{"GET /v1", (*Server).about},
	{"POST /v1/session", (*Server).openSession},
	{"DELETE /v1/session", (*Server).closeSession},
	{"POST /v1/session/keepalive", (*Server).keepAlive},
	{"GET /v1/session/events", (*Server).events},
	{"PUT /v1/locks/{number}", (*Server).acquire},
	{"DELETE /v1/locks/{number}", (*Server).release},
	{"POST /v1/locks/{number}/wait", (*Server).wait},
	{"POST /v1/locks/{number}/adopt", (*Server).adopt},
	{"PUT /v1/locks/{number}/value", (*Server).publish},
	{"POST /v1/locks/{number}/downgrade", (*Server).downgrade},
	{"GET /v1/queue", (*Server).queue},
	{"GET /v1/names", (*Server).names},
	{"GET /v1/watch", (*Server).watch},
	{"POST /v1/evict", (*Server).evict},
	{"GET /v1/eviction", (*Server).lastEviction},
	{"GET /v1/quarantine", (*Server).quarantine},
	{"GET /v1/identity", (*Server).identity},
	{"GET /v1/doctor", (*Server).doctor},
	{"GET /v1/warnings", (*Server).warnings},
	{"GET /metrics", (*Server).metrics},
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, r := range api {
		mux.HandleFunc(r.pattern, func(w http.ResponseWriter, q *http.Request) { s.handle(w.(*reply), q, r) })
	}
	mux.HandleFunc("GET /v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/vnd.oai.openapi+json;version=3.1")
		_, _ = w.Write(openAPI) // to a client that may have gone
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(httpapi.ServerHeader, s.life) // by which other servers find the server of a session
		_, _ = io.WriteString(w, "ok\n")             // to a client that may have gone
	})
	mux.HandleFunc("GET /readyz", s.ready)
	for _, r := range s.page.Routes() {
		mux.HandleFunc(r.Pattern, func(w http.ResponseWriter, q *http.Request) { s.servePage(w.(*reply), q, r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		writeProblem(w, httpapi.NewProblem(httpapi.NotFound, "there is no such path, or not by this method: GET /v1/openapi.json lists them"))
	})
	return mux
}

// call is one request.
type call struct {
	w      http.ResponseWriter
	q      *http.Request
	holder *access.Holder
	body   []byte
	status int

	bounded context.Context // nil until it is asked for
	cancel  context.CancelFunc
}

// ctx is for what waits for nothing but the store, which may be silent.
func (c *call) ctx() context.Context {
	if c.bounded == nil {
		c.bounded, c.cancel = context.WithTimeout(c.q.Context(), silence)
	}
	return c.bounded
}

// handle answers one request of the API, or has it wait.
func (s *Server) handle(w *reply, q *http.Request, r route) {
	c := &call{w: w, q: q, status: http.StatusOK}
	defer func() {
		if c.cancel != nil {
			c.cancel()
		}
	}()
	answer, err := func() (any, error) {
		var err error
		if c.holder, err = s.holder(q); err != nil {
			return nil, err
		}
		w.holder = c.holder.Name
		if err := s.admitRequest(c.holder, r.pattern); err != nil {
			return nil, err
		}
		if err := c.read(); err != nil {
			return nil, err
		}
		if p := s.elsewhere(c, r.pattern); p != nil {
			return s.passOn(c, p)
		}
		return r.do(s, c)
	}()
	if waits, ok := answer.(waiting); ok && err == nil {
		w.waits = waits
		return
	}
	w.answer(c.status, answer, err)
}

// written is the answer of a handler that has written it itself.
var written = any("written")

// here reports a Host header that names this machine.
func here(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	a, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && a.IsLoopback()
}

// holder is who has sent a request. A web page in a browser of this machine can send requests here as
// well, also as another host if it lies about its own address (DNS rebinding): those are refused.
func (s *Server) holder(q *http.Request) (*access.Holder, error) {
	return s.tokenHolder(q, func() (string, bool) { return strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ") })
}

// tokenHolder is the same with the token from elsewhere.
func (s *Server) tokenHolder(q *http.Request, sent func() (token string, ok bool)) (*access.Holder, error) {
	if err := s.origin.Check(q); err != nil {
		return nil, httpapi.NewProblem(httpapi.Forbidden, "a page of another site has made this request")
	}
	if s.o.Tokens == nil {
		if !here(q.Host) {
			return nil, httpapi.NewProblem(httpapi.Forbidden, "without tokens the server answers to this machine's names only (the header Host is another)")
		}
		return s.anybody, nil
	}
	token, ok := sent()
	if !ok {
		return s.certificateHolder(q)
	}
	h := s.o.Tokens.Find(token)
	if h == nil {
		return nil, httpapi.NewProblem(httpapi.NoToken, "the token is not in the server's file")
	}
	return h, nil
}

// certificateHolder is who has the certificate of a connection. A token counts for more: one client of a connection may act for others.
func (s *Server) certificateHolder(q *http.Request) (*access.Holder, error) {
	if q.TLS == nil || len(q.TLS.VerifiedChains) == 0 {
		return nil, httpapi.NewProblem(httpapi.NoToken, "the request needs the header Authorization: Bearer TOKEN")
	}
	name := q.TLS.VerifiedChains[0][0].Subject.CommonName
	h := s.o.Tokens.FindCertificate(name)
	if h == nil {
		return nil, httpapi.NewProblem(httpapi.NoToken, fmt.Sprintf("the certificate's common name %q is not in the server's file, and there is no header Authorization: Bearer TOKEN", name))
	}
	return h, nil
}

// servePage answers a request of the page. The token comes from its cookie, which the API does not look at: no page of another
// site makes a request here that counts.
func (s *Server) servePage(w *reply, q *http.Request, r page.Route) {
	page.Protect(w.Header())
	h, refused := s.tokenHolder(q, func() (string, bool) {
		c, err := q.Cookie(page.Cookie)
		if err != nil {
			return "", false
		}
		return c.Value, true
	})
	if refused == nil {
		refused = s.admitRequest(h, r.Pattern)
		w.holder = h.Name
	}
	unknown := new(httpapi.Problem)
	if refused != nil && !(r.Open && errors.As(refused, &unknown) && unknown.Of(httpapi.NoToken)) {
		writeProblem(w, problem(refused))
		return
	}
	r.Do(w, q, h)
}

// read reads the whole body. Only after that can the server notice that the client goes away, and the
// time that a body may take must not end a request that waits.
func (c *call) read() error {
	var err error
	if c.body, err = io.ReadAll(http.MaxBytesReader(c.w, c.q.Body, largestBody)); err != nil {
		return httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("the body cannot be read, or has more than %d bytes", largestBody))
	}
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Time{}) // where it cannot be set, none was
	return c.allow(storeAnswer)
}

// allow gives the answer its time.
func (c *call) allow(d time.Duration) error {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(d + writeSlack)) // where it cannot be set, none was
	return nil
}

// decode reads the body as JSON, and refuses fields that do not exist: a mistyped no_wait must not be
// silent.
func (c *call) decode(into any) error {
	if len(c.body) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(c.body))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil && d.More() {
		err = errors.New("there is more behind the object")
	}
	if err != nil {
		return httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("the body is not what is expected: %v", err))
	}
	return nil
}

func (c *call) may(r access.Right, name string) error {
	if c.holder.May(r, name) {
		return nil
	}
	return httpapi.NewProblem(httpapi.Forbidden, fmt.Sprintf("token %q has not the right to %s %q", c.holder.Name, r, name))
}

// problem is an error as it is sent.
func problem(err error) *httpapi.Problem {
	p := new(httpapi.Problem)
	if errors.As(err, &p) {
		return p
	}
	return httpapi.ProblemOf(err)
}

// ready says whether new clients should come here.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.isDraining() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n") // to a client that may have gone
}
