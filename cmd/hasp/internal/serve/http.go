package serve

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/internal/httpapi"
)

const (
	idle       = 2 * time.Minute  // how long a connection without a request stays open
	slow       = 10 * time.Second // for a request's way here
	writeSlack = 10 * time.Second // for the answer's way to a slow reader
	strangers  = 1024             // connections of which no request was of a known token
	logEvery   = 10 * time.Second // of errors that may come a thousand times a second
)

// HTTP is an http.Server for s: HTTP/1.1, and HTTP/2 with TLS or without. Slow senders are cut off;
// each handler says how long its answer may take.
func HTTP(s *Server) *http.Server {
	var both http.Protocols
	both.SetHTTP1(true)
	both.SetHTTP2(true)
	both.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: s, Protocols: &both, ReadHeaderTimeout: slow, ReadTimeout: slow, WriteTimeout: slow + writeSlack, IdleTimeout: idle,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0), // of what clients do wrong
		ConnState: s.conns.changed, ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
	}
}

// Serve answers at l until ctx ends, and then for as long as what is held needs, but no longer than
// drain. It closes l. Without TLS secure is nil.
func (s *Server) Serve(ctx context.Context, l net.Listener, secure *tls.Config, drain time.Duration) error {
	h := HTTP(s)
	h.TLSConfig = secure
	ended := make(chan error, 1)
	go func() {
		if secure != nil {
			ended <- h.ServeTLS(listener{l, s}, "", "")
			return
		}
		ended <- h.Serve(listener{l, s})
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	rest, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	s.Drain(rest)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // for answers that are under way
	defer cancel()
	if err := h.Shutdown(last); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return h.Close()
}

// listener notes what cannot be accepted. net/http tries again, a second later at most.
type listener struct {
	net.Listener
	s *Server
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		l.s.measured.unaccepted.Add(1)
		l.s.often.Do(func() {
			l.s.o.Log.Error("a connection cannot be accepted; raise the limit of open files if it says so", slog.Any("error", err))
		})
	}
	return c, err
}

type connKey struct{} // of a connection in its requests' contexts

// conns bounds the connections of strangers. One too many closes the one that came first: a flood
// costs those who have not shown a token for long, and no client.
type conns struct {
	mu    sync.Mutex
	all   list.List // of net.Conn, the latest last
	place map[net.Conn]*list.Element
	most  int
	over  func()
}

// changed is http.Server.ConnState.
func (c *conns) changed(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateClosed, http.StateHijacked:
		c.known(conn)
	case http.StateNew:
		c.mu.Lock()
		c.place[conn] = c.all.PushBack(conn)
		var first net.Conn
		if c.all.Len() > c.most {
			first = c.all.Front().Value.(net.Conn)
		}
		c.mu.Unlock()
		if first != nil {
			c.known(first)
			c.over()
			_ = first.Close() // its goroutine notices
		}
	}
}

// known forgets a connection: a known token has come by it, or it has ended.
func (c *conns) known(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.place[conn]; e != nil {
		c.all.Remove(e)
		delete(c.place, conn)
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r := &reply{ResponseWriter: w}
	began := time.Now()
	defer s.note(r, q, began)
	defer s.survive(func() string { return q.Pattern }, func() {
		if r.status == 0 {
			writeProblem(r, httpapi.NewProblem(httpapi.Internal, ""))
		}
	})
	s.mux.ServeHTTP(r, q)
}

// survive is deferred, and takes a panic: it costs one answer, and not the locks of all sessions.
func (s *Server) survive(what func() string, then func()) {
	fault := recover()
	if fault == nil {
		return
	}
	s.measured.panics.Add(1)
	stack := "left out: another one was logged just now"
	s.often.Do(func() { stack = string(debug.Stack()) })
	s.o.Log.Error("panic: a fault of this program, please report it", slog.Any("fault", fault), slog.String("in", what()), slog.String("stack", stack))
	then()
}

// reply is the answer to one request, and what the log says of it.
type reply struct {
	http.ResponseWriter
	status int
	holder string // the token's name
}

// WriteHeader adds what each answer has.
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

// problem is an error as it is sent.
func problem(err error) *httpapi.Problem {
	p := new(httpapi.Problem)
	if !errors.As(err, &p) {
		p = httpapi.ProblemOf(err)
	}
	public := *p
	public.Detail = withoutAddresses(p.Detail)
	return &public
}

var address = regexp.MustCompile(`(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:.]+(%\w+)?\])(:\d+)?|lookup \S+( on \S+)?`)

// hostPort is a host by name. What is quoted comes first, and is the name of a lock, mostly.
var hostPort = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\b[A-Za-z][\w-]*(\.[\w-]+)*:\d{2,5}\b`)

// withoutAddresses leaves addresses out of what a client is told: errors of the network name those
// of the store, and of the server's own end. The log has them.
func withoutAddresses(text string) string {
	const left = "(an address)"
	return hostPort.ReplaceAllStringFunc(address.ReplaceAllString(text, left), func(found string) string {
		if strings.HasPrefix(found, `"`) {
			return found
		}
		return left
	})
}

// note counts an answer, and logs it. The log has no header, no body and no query: sessions and
// tokens are in the first, and the names of locks in the others.
func (s *Server) note(r *reply, q *http.Request, began time.Time) {
	if r.status == http.StatusBadGateway && q.Context().Err() != nil {
		r.status = 499 // as in nginx: the client has gone, and no store has failed
	}
	s.measured.request(cmp.Or(q.Pattern, "none"), r.status)
	if !s.o.Log.Enabled(context.Background(), slog.LevelInfo) {
		return
	}
	s.o.Log.Info("request", slog.String("method", q.Method), slog.String("path", q.URL.Path[:min(len(q.URL.Path), 100)]), slog.Int("status", r.status),
		slog.Int64("ms", time.Since(began).Milliseconds()), slog.String("from", q.RemoteAddr), slog.String("token", r.holder), slog.String("trace", trace(q.Header)))
}

var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?$`)

// trace is the id of the trace that a request belongs to (https://www.w3.org/TR/trace-context/), ""
// if it has none. By it a line of the log is found from the span of the program that made the
// request. The server exports no spans: what it does for a request is one call of the store, which
// the client's span covers.
func trace(h http.Header) string {
	if m := traceparent.FindStringSubmatch(h.Get("Traceparent")); m != nil {
		return m[1]
	}
	return ""
}
