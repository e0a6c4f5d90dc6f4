package serve_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// wire is a connection of HTTP/1.1, and what is on it.
type wire struct {
	t testing.TB
	net.Conn
	in *bufio.Reader
}

func wireTo(t testing.TB, c net.Conn, err error) *wire {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(testkit.Patience))
	return &wire{t, c, bufio.NewReader(c)}
}

func dialed(t testing.TB, addr string) *wire {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	return wireTo(t, c, err)
}

func (w *wire) send(session, method, path, body string) {
	w.t.Helper()
	_, err := fmt.Fprintf(w, "%s /v1/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nHasp-Session: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, session, len(body), body)
	if err != nil {
		w.t.Fatal(err)
	}
}

// lock waits for a lock, on a connection that is not net/http's meanwhile.
func (w *wire) lock(s *serve.Server, session, number string) {
	w.t.Helper()
	before := s.Parked()
	w.send(session, "PUT", "locks/"+number, `{"name":"a","wait_ms":30000}`)
	testkit.Eventually(w.t, "the connection to be parked", func() bool { return s.Parked() == before+1 })
}

// answer reads one, and decodes it unless into is nil.
func (w *wire) answer(status int, into any) *http.Response {
	w.t.Helper()
	r, err := http.ReadResponse(w.in, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != status {
		w.t.Fatalf("%s, want %d: %s, %v", r.Status, status, body, err)
	}
	if r.Header.Get("Cache-Control") != "no-store" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
		w.t.Errorf("headers %v", r.Header)
	}
	if into != nil && json.Unmarshal(body, into) != nil {
		w.t.Fatalf("%q", body)
	}
	return r
}

func (w *wire) held() {
	w.t.Helper()
	var l httpapi.Lock
	if w.answer(http.StatusOK, &l); l.State != httpapi.Held {
		w.t.Fatalf("%+v", l)
	}
}

// A connection that has waited for long takes further requests, and waits again, with TLS and without.
func TestParked(t *testing.T) {
	s, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	t.Run("http", func(t *testing.T) { testParked(t, s, dialed(t, addr)) })
	s, err := serve.New(serve.Options{Store: memlock.New().Backend(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	secure := httptest.NewUnstartedServer(nil)
	secure.Config = serve.HTTP(s)
	secure.StartTLS()
	defer secure.Config.Close()
	defer secure.Close()
	t.Run("https", func(t *testing.T) {
		trust := secure.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		trust.ServerName = "example.com"
		c, err := tls.Dial("tcp", secure.Listener.Addr().String(), trust)
		testParked(t, s, wireTo(t, c, err))
	})
}

func testParked(t *testing.T, s *serve.Server, w *wire) {
	holder, waiter := &api{t: t, s: s}, &api{t: t, s: s}
	holder.open(time.Minute)
	session := waiter.open(time.Minute).Session
	for i := range 3 {
		number := strconv.Itoa(i + 1)
		holder.lock(number, "a")
		w.lock(s, session, number)
		holder.want(http.StatusNoContent, "DELETE", "/v1/locks/"+number, nil, nil)
		w.held()
		w.send(session, "DELETE", "locks/"+number, "")
		w.answer(http.StatusNoContent, nil)
	}
	// The client sends its next requests before it has the answer.
	holder.lock("4", "a")
	w.lock(s, session, "4")
	w.send(session, "DELETE", "locks/4", "")
	w.send(session, "POST", "session/keepalive", "")
	holder.want(http.StatusNoContent, "DELETE", "/v1/locks/4", nil, nil)
	w.held()
	w.answer(http.StatusNoContent, nil)
	w.answer(http.StatusOK, &httpapi.Alive{})
	if n := s.Parked(); n != 0 {
		t.Errorf("%d connections are parked still", n)
	}
}

// Many connections wait, are answered and ask again, by a client that keeps them open: each answer is the one that
// was asked for, and none of the connections is lost.
func TestParkedCrowd(t *testing.T) {
	s, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	holder := &api{t: t, s: s}
	holder.open(time.Minute)
	holder.lock("1", "a")
	const clients, rounds = 100, 6 // more than wait in place
	var dials atomic.Int32
	client := &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: clients, MaxConnsPerHost: clients,
		DialContext: func(ctx context.Context, network, to string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, to)
		},
	}}
	defer client.CloseIdleConnections()
	var all sync.WaitGroup
	var parked atomic.Bool
	for i := range clients {
		waiter := &api{t: t, s: s}
		session := waiter.open(time.Minute).Session
		all.Go(func() {
			for round := range rounds {
				body := fmt.Sprintf(`{"name":"a","wait_ms":%d}`, 20+(i*7+round*50)%250)
				q, err := http.NewRequestWithContext(t.Context(), "PUT", "http://"+addr+"/v1/locks/1", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				q.Header.Set(httpapi.SessionHeader, session)
				r, err := client.Do(q)
				if err != nil {
					t.Error(err)
					return
				}
				var l httpapi.Lock
				err = json.NewDecoder(r.Body).Decode(&l)
				_, _ = io.Copy(io.Discard, r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != http.StatusOK || l.State != httpapi.Waiting {
					t.Errorf("client %d, round %d: %s, %+v, %v", i, round, r.Status, l, err)
					return
				}
				if s.Parked() > 0 {
					parked.Store(true)
				}
			}
		})
	}
	all.Wait()
	if !parked.Load() {
		t.Error("no connection was parked: this shows nothing")
	}
	if n := dials.Load(); n > clients {
		t.Errorf("%d connections were made for %d clients", n, clients)
	}
}

// heldByOther makes two sessions, the first of which holds the lock "a".
func heldByOther(t *testing.T, s *serve.Server) (holder, waiter *api, session string) {
	holder, waiter = &api{t: t, s: s}, &api{t: t, s: s}
	holder.open(time.Minute)
	holder.lock("1", "a")
	return holder, waiter, waiter.open(time.Minute).Session
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// A client goes away while it waits: its wait ends, and the lock can be given back by a request of another connection as ever.
func TestParkedLeaves(t *testing.T) {
	log := make(lines, 64)
	s, addr := start(t, serve.Options{Store: memlock.New().Backend(), Log: slog.New(slog.NewTextHandler(log, nil))})
	holder, waiter, session := heldByOther(t, s)
	w := dialed(t, addr)
	w.lock(s, session, "1")
	_ = w.Close()
	testkit.Eventually(t, "the wait to end", func() bool { return s.Parked() == 0 })
	line := ""
	for !strings.Contains(line, "from="+w.LocalAddr().String()) {
		line = testkit.Await(t, "the wait in the log", log)
	}
	if strings.Contains(line, "status=200") {
		t.Errorf("the wait ended when its time was over: %s", line)
	}
	var l httpapi.Lock
	if waiter.want(http.StatusOK, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a"}, &l); l.State != httpapi.Waiting {
		t.Errorf("%+v", l)
	}
	holder.want(http.StatusNoContent, "DELETE", "/v1/locks/1", nil, nil)
	waiter.want(http.StatusOK, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 30_000}, &l)
	if l.State != httpapi.Held {
		t.Errorf("%+v", l)
	}
}

// A later request for the lock ends a parked one, and so does the end of the session.
func TestParkedEnds(t *testing.T) {
	s, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	_, waiter, session := heldByOther(t, s)
	w := dialed(t, addr)
	w.lock(s, session, "1")
	waiter.want(http.StatusOK, "POST", "/v1/locks/1/wait", httpapi.Wait{}, nil)
	var p httpapi.Problem
	if w.answer(http.StatusConflict, &p); !p.Of(httpapi.Overtaken) {
		t.Errorf("%+v", p)
	}
	w = dialed(t, addr)
	w.lock(s, session, "1")
	waiter.want(http.StatusNoContent, "DELETE", "/v1/session", nil, nil)
	if w.answer(http.StatusGone, &p); !p.Of(httpapi.SessionGone) {
		t.Errorf("%+v", p)
	}
}

// A server that ends answers those that wait, and closes the connections that it has parked.
func TestParkedDrains(t *testing.T) {
	s, err := serve.New(serve.Options{Store: memlock.New().Backend(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := serve.HTTP(s)
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(l) }()
	_, _, session := heldByOther(t, s)
	w, idle := dialed(t, l.Addr().String()), dialed(t, l.Addr().String())
	w.lock(s, session, "1")
	idle.lock(s, session, "2")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.Drain(ctx)
	for _, each := range []*wire{w, idle} {
		var a httpapi.Lock
		if each.answer(http.StatusOK, &a); a.State != httpapi.Waiting {
			t.Errorf("%+v", a)
		}
	}
	w.send(session, "POST", "session/keepalive", "") // what is held is kept until the end
	w.answer(http.StatusOK, nil)
	if n := s.Parked(); n != 1 {
		t.Errorf("%d connections are parked", n)
	}
	if err := h.Shutdown(testkit.Context(t)); err != nil {
		t.Error(err)
	}
	if err := testkit.Await(t, "the server to end", ended); !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	for _, each := range []*wire{w, idle} {
		if b, err := each.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the connection is open: %d, %v", b, err)
		}
	}
}
