package serve

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/page"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

const (
	largestBody = 16 << 10
	longestWait = 30 * time.Second // of one request
	storeAnswer = 10 * time.Second // how long the store may take for what its client does not wait for
)

// openAPI describes the API. A test compares it with the routes and with the messages.
//
//go:embed openapi.json
var openAPI []byte

// route is one operation of the API.
type route struct {
	pattern string // of http.ServeMux
	do      func(*Server, *call) (any, error)
}

// api has every operation that needs a token; openapi.json describes each.
var api = []route{
	{"GET /v1", (*Server).about},
	{"POST /v1/session", (*Server).openSession},
	{"DELETE /v1/session", inSession((*Server).closeSession)},
	{"POST /v1/session/keepalive", inSession((*Server).keepAlive)},
	{"GET /v1/session/events", inSession((*Server).events)},
	{"PUT /v1/locks/{number}", inSession((*Server).acquire)},
	{"DELETE /v1/locks/{number}", inSession((*Server).release)},
	{"POST /v1/locks/{number}/adopt", inSession((*Server).adopt)},
	{"PUT /v1/locks/{number}/value", inSession((*Server).publish)},
	{"POST /v1/locks/{number}/downgrade", inSession((*Server).downgrade)},
	{"GET /v1/queue", ofName((*Server).queue)},
	{"GET /v1/names", (*Server).names},
	{"GET /v1/watch", ofName((*Server).watch)},
	{"POST /v1/evict", (*Server).evict},
	{"GET /v1/eviction", ofName((*Server).lastEviction)},
	{"GET /v1/quarantine", ofName((*Server).quarantine)},
	{"GET /v1/doctor", (*Server).doctor},
	{"GET /v1/warnings", (*Server).warnings},
	{"GET /metrics", (*Server).metrics},
}

// inSession is an operation of the session that the request names.
func inSession(do func(*Server, *call, *session) (any, error)) func(*Server, *call) (any, error) {
	return func(s *Server, c *call) (any, error) {
		x, err := s.session(c.holder, c.q.Header.Get(httpapi.SessionHeader))
		if err != nil {
			return nil, err
		}
		return do(s, c, x)
	}
}

// ofName looks at the lock that the query names.
func ofName(do func(*Server, *call, string) (any, error)) func(*Server, *call) (any, error) {
	return func(s *Server, c *call) (any, error) {
		name := c.q.URL.Query().Get("name")
		if err := driver.CheckName(name); err != nil {
			return nil, httpapi.NewProblem(httpapi.Invalid, err.Error())
		}
		if err := c.may(access.Look, name); err != nil {
			return nil, err
		}
		return do(s, c, name)
	}
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
		_, _ = io.WriteString(w, "ok\n") // to a client that may have gone
	})
	mux.HandleFunc("GET /readyz", s.ready)
	for _, r := range s.page.Routes() {
		mux.HandleFunc(r.Pattern, func(w http.ResponseWriter, q *http.Request) { s.servePage(w.(*reply), q, r) })
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { noRoute(mux, w, q) })
	return mux
}

// noRoute says that there is no such path, or which methods it has. The version of the API is in
// each path, so a client and a server of two versions do not understand each other by mistake. That
// the answer is this problem, whose detail tells people what to do, stays for good: clients of every
// version end with it.
func noRoute(mux *http.ServeMux, w http.ResponseWriter, q *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodDelete} {
		other := *q
		other.Method = method
		if _, pattern := mux.Handler(&other); pattern != "/" {
			allowed = append(allowed, method)
		}
	}
	if allowed == nil {
		detail := "there is no such path: GET /v1/openapi.json lists them"
		if other := otherVersion.FindString(q.URL.Path); other != "" && other != "/v1" {
			detail = "this server of hasp has version 1 of the API, and its client wants " + other[1:] + ": bring both to one version of hasp"
		}
		writeProblem(w, httpapi.NewProblem(httpapi.NotFound, detail))
		return
	}
	methods := strings.Join(allowed, ", ")
	w.Header().Set("Allow", methods)
	writeProblem(w, httpapi.NewProblem(httpapi.Method, "the path has other methods: "+methods))
}

var otherVersion = regexp.MustCompile(`^/v\d+`)

// written is the answer of a handler that has written it itself.
var written = page.Written

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
		for _, key := range []string{"Authorization", httpapi.SessionHeader} {
			if len(q.Header.Values(key)) > 1 { // a proxy that looks at the last one has seen another client than we
				return nil, httpapi.NewProblem(httpapi.Invalid, "the header "+key+" is there twice")
			}
		}
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
		return r.do(s, c)
	}()
	w.answer(c.status, answer, err)
}

// read reads the whole body. Only after that can the server notice that the client goes away, and
// the time that a body may take must not end a request that waits.
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

// decode reads the body as JSON, and refuses fields that do not exist: a mistyped no_wait must not
// be silent.
func (c *call) decode(into any) error {
	if len(c.body) == 0 {
		return nil
	}
	if err := httpapi.Decode(c.body, into); err != nil {
		return httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("the body is not what is expected: %v", err))
	}
	return nil
}

// ready says whether new clients should come here.
func (s *Server) ready(w http.ResponseWriter, _ *http.Request) {
	if s.isDraining() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	_, _ = io.WriteString(w, "ok\n") // to a client that may have gone
}
