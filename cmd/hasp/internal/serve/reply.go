package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

// reply is the answer to one request, and what the log says of it. It does not keep the request, which may wait for long.
type reply struct {
	http.ResponseWriter
	status int
	holder string  // the token's name
	waits  waiting // not nil: the request waits

	began                              time.Time
	method, path, from, trace, pattern string
}

// A request over HTTP/1.1 waits a moment before its connection is parked, which costs more time than a short wait: so it is in a short
// queue. When many wait, the others are parked at once.
const (
	inPlace     = 100 * time.Millisecond
	mostInPlace = 64
)

// ServeHTTP implements http.Handler. The goroutine of a request that waits is here, with its smallest stack.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	var r *reply
	if q.ProtoMajor == 1 {
		r = s.begin(w, q)
	} else {
		r = s.beginAside(w, q)
	}
	if r == nil {
		return
	}
	for !r.waits.wait(longestWait) {
	}
	r.result()
	s.note(r)
}

// begin answers a request, or returns what waits for its answer.
func (s *Server) begin(w http.ResponseWriter, q *http.Request) *reply {
	r := &reply{ResponseWriter: w, began: time.Now(), method: q.Method, path: q.URL.Path, from: q.RemoteAddr, trace: trace(q.Header)}
	s.mux.ServeHTTP(r, q)
	r.pattern = q.Pattern
	switch {
	case r.waits == nil:
	case q.ProtoMajor == 1 && s.waitInPlace(r.waits):
		r.result()
	case q.ProtoMajor == 1 && s.park(r, q):
		return nil
	default:
		return r
	}
	s.note(r)
	return nil
}

// beginAside is begin on another goroutine's stack, which grows meanwhile: that of the goroutine that calls stays small. It has the panics of begin,
// which net/http takes.
func (s *Server) beginAside(w http.ResponseWriter, q *http.Request) (r *reply) {
	var panics any
	done := make(chan struct{})
	work := func() {
		defer close(done)
		defer func() { panics = recover() }()
		r = s.begin(w, q)
	}
	select {
	case s.aside <- work:
	default:
		go s.helpAside(work)
	}
	<-done
	if panics != nil {
		panic(panics)
	}
	return r
}

// helpAside keeps its stack for the requests that follow soon.
func (s *Server) helpAside(work func()) {
	for {
		work()
		work = nil
		select {
		case work = <-s.aside:
		case <-time.After(time.Second):
			return
		case <-s.over.Done():
			return
		}
	}
}

func (s *Server) waitInPlace(w waiting) (answered bool) {
	defer s.inPlace.Add(-1)
	return s.inPlace.Add(1) <= mostInPlace && w.wait(inPlace)
}

// result answers a request that has waited.
func (r *reply) result() {
	answer, err := r.waits.result()
	r.waits = nil
	r.answer(http.StatusOK, answer, err)
}

// answer writes the answer, or the error.
func (r *reply) answer(status int, answer any, err error) {
	switch {
	case err != nil:
		writeProblem(r, problem(err))
	case answer == nil:
		r.WriteHeader(http.StatusNoContent)
	case answer != written:
		r.Header().Set("Content-Type", "application/json")
		r.WriteHeader(status)
		_ = json.NewEncoder(r).Encode(answer) // to a client that may have gone
	}
}

func writeProblem(w http.ResponseWriter, p *httpapi.Problem) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	switch {
	case p.Of(httpapi.NoToken):
		h.Set("WWW-Authenticate", "Bearer")
	case !p.Final && (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests || p.Status == http.StatusBadGateway || p.Of(httpapi.Overtaken)):
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // to a client that may have gone
}

// note counts an answer, and logs it. The log has no header, no body and no query: sessions and tokens
// are in the first, and the names of locks in the others.
func (s *Server) note(r *reply) {
	s.meas.request(cmp.Or(r.pattern, "none"), r.status)
	if !s.o.Log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	s.o.Log.Info("request", slog.String("method", r.method), slog.String("path", loggable(r.path)), slog.Int("status", r.status),
		slog.Int64("ms", time.Since(r.began).Milliseconds()), slog.String("from", r.from), slog.String("token", r.holder), slog.String("trace", r.trace))
}

var traceparent = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$`)
})

// trace is the id of the trace that a request belongs to (https://www.w3.org/TR/trace-context/), "" if it has none. By it a line
// of the log is found from the span of the program that made the request. The server exports no spans: what it does for a request is
// one call of the store, which the client's span covers.
func trace(h http.Header) string {
	if parent := h.Get("Traceparent"); parent != "" {
		if m := traceparent().FindStringSubmatch(parent); m != nil {
			return m[1]
		}
	}
	return ""
}

// loggable keeps a path that somebody has made up from filling the log.
func loggable(path string) string { return strconv.QuoteToASCII(path[:min(len(path), 100)]) }

// WriteHeader adds what each answer has. It comes here and not earlier because the headers of a request that waits take half a kilobyte.
func (r *reply) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
		h := r.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		if h.Get("Cache-Control") == "" {
			h.Set("Cache-Control", "no-store")
		}
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *reply) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (r *reply) Unwrap() http.ResponseWriter { return r.ResponseWriter }
