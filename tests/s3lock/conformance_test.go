package s3lock_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/drivertest"
	"github.com/hasplock/hasp/drivertest/programs"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/s3lock"
)

func TestMain(m *testing.M) {
	os.Setenv("AWS_ACCESS_KEY_ID", "test") // also of the other processes of the suite
	os.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	drivertest.Main(m)
}

// server is a server of the protocol with a bucket in memory.
type server struct {
	*httptest.Server
	requests    atomic.Int64
	connections atomic.Int64 // that are open
}

func serve(t testing.TB, between func(http.Handler) http.Handler) *server {
	t.Helper()
	store := s3mem.New()
	if err := store.CreateBucket("locks"); err != nil {
		t.Fatal(err)
	}
	h := gofakes3.New(store, gofakes3.WithLogger(gofakes3.DiscardLog())).Server()
	if between != nil {
		h = between(h)
	}
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		h.ServeHTTP(w, r)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew:
			s.connections.Add(1)
		case http.StateClosed:
			s.connections.Add(-1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	return s
}

func (s *server) url(prefix string) string {
	return "s3://locks/" + prefix + "?path_style=true&region=us-east-1&endpoint=" + s.URL
}

func open(t testing.TB, url string) driver.Backend {
	t.Helper()
	b, err := s3lock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The suite waits for some hundred hand-overs one after another: with the pause between two reads
// that users have, they alone take two minutes. TestPolling of tests/caslock is about that pause.
func TestConformance(t *testing.T) {
	s := serve(t, nil)
	url := func(prefix string) string { return s.url(prefix) + "&poll=50ms" }
	names := 1000
	if testing.Short() {
		names = 200 // a list reads each name that was ever used: a thousand are for the long tier
	}
	drivertest.Run(t, drivertest.Harness{
		Open: func(t testing.TB) driver.Backend { return open(t, url("a")) },
		URL:  url("a"),
		TTL:  s3lock.MinTTL,
		Ops:  s.requests.Load,
		Counted: func(t testing.TB) (driver.Backend, func() int64) {
			n := testkit.Proxy(t, s.Listener.Addr().String())
			return open(t, strings.Replace(url("a"), s.URL, "http://"+n.Addr(), 1)), faultnet.Network{n}.Sent
		},
		Gated: func(t testing.TB, gate func(context.Context, string) error) (driver.Backend, func() int64) {
			s := serve(t, func(h http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, _ := io.ReadAll(r.Body) // else the end of the client is not seen
					r.Body = io.NopCloser(bytes.NewReader(body))
					if r.Method == http.MethodPut && gate(r.Context(), r.URL.Path) != nil {
						w.WriteHeader(http.StatusBadGateway)
						return
					}
					h.ServeHTTP(w, r)
				})
			})
			return open(t, s.url("a")), s.requests.Load
		},
		Names:    names,
		AtOnce:   128, // each renewal is a request: a thousand locks make 600 a second
		Programs: programs.Harness{Other: func(t testing.TB) driver.Backend { return open(t, url("b")) }}.Run,
	})
}

// A store that ignores conditions is refused by the name of what failed, each kind of it.
func TestConditionsIgnored(t *testing.T) {
	for header, want := range map[string]string{"If-None-Match": "If-None-Match: * on PUT", "If-Match": "If-Match on PUT"} {
		s := serve(t, func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodPut {
					r.Header.Del(header)
				}
				h.ServeHTTP(w, r)
			})
		})
		b, err := s3lock.Open(t.Context(), s.url("x"))
		if err == nil {
			b.Close()
			t.Errorf("a store that ignores %s was accepted", header)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", header, err)
		}
	}
}

// A store that excludes no writes which create an object at the same time, but those after them, is
// refused also by who tries again.
func TestCreatesAtOnce(t *testing.T) {
	var racy atomic.Bool
	s := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if racy.Load() && r.Method == http.MethodPut && r.Header.Get("If-None-Match") != "" {
				look := httptest.NewRecorder()
				h.ServeHTTP(look, httptest.NewRequest(http.MethodGet, r.URL.String(), nil))
				time.Sleep(100 * time.Millisecond) // the write comes after the others' looks, as in stores that look first
				if look.Code == http.StatusNotFound {
					r.Header.Del("If-None-Match")
				}
			}
			h.ServeHTTP(w, r)
		})
	})
	racy.Store(true)
	for i := range 3 {
		b, err := s3lock.Open(t.Context(), s.url("x"))
		if err == nil {
			b.Close()
			t.Fatalf("accepted at attempt %d", i)
		}
		if !strings.Contains(err.Error(), "If-None-Match: * on PUT: ") {
			t.Errorf("attempt %d: %v", i, err)
		}
	}
	racy.Store(false) // mended
	for range 2 {
		before := s.requests.Load()
		b := open(t, s.url("x"))
		t.Logf("%d requests", s.requests.Load()-before)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}

// Many who open at the same time do not refuse each other's probes.
func TestProbesAtOnce(t *testing.T) {
	s := serve(t, nil)
	failed := make(chan error)
	for range 16 {
		go func() {
			b, err := s3lock.Open(context.Background(), s.url("x"))
			if err == nil {
				err = b.Close()
			}
			failed <- err
		}()
	}
	for range 16 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// What is wrong is said before any request, or by the first answer, and without a secret.
func TestRefusals(t *testing.T) {
	s := serve(t, nil)
	for url, want := range map[string]string{
		"s3://": "s3://BUCKET/PREFIX", "s3://key:secret@locks/x": "credentials come from",
		"s3://locks/x?endpoint=ftp://h": "endpoint", "s3://locks/x?tll=3s": "unknown parameter",
		strings.Replace(s.url("x"), "://locks/", "://other-bucket/", 1): "no such bucket",
		s.url("x") + "&ca=/none": "ca",
	} {
		b, err := s3lock.Open(t.Context(), url)
		if err == nil {
			b.Close()
			t.Errorf("%s was accepted", url)
			continue
		}
		if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

// A backend that is closed, and one that is refused, leave no connection at the server.
func TestConnectionsClosed(t *testing.T) {
	s := serve(t, nil)
	for range 3 {
		if err := open(t, s.url("x")).Close(); err != nil {
			t.Error(err)
		}
		if b, err := s3lock.Open(t.Context(), strings.Replace(s.url("x"), "://locks/", "://other-bucket/", 1)); err == nil {
			t.Error(b.Close(), "a bucket that is not there was opened")
		}
	}
	testkit.Eventually(t, "no connection is left", func() bool { return s.connections.Load() == 0 })
}

// A free lock takes two requests, its release one, a renewal one.
func TestRequests(t *testing.T) {
	s := serve(t, nil)
	b := open(t, s.url("x"))
	defer b.Close()
	session, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	count := func(what string, want int64, do func() error) {
		t.Helper()
		before := s.requests.Load()
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if n := s.requests.Load() - before; n != want {
			t.Errorf("%s: %d requests, want %d", what, n, want)
		}
	}
	for _, what := range []string{"a new name", "a free one"} {
		ticket := session.Ticket(driver.Request{Name: "n", ID: strings.ReplaceAll(what, " ", "-"), Units: driver.Whole, Capacity: driver.Whole})
		count(what, 2, func() error { _, err := ticket.Enqueue(t.Context()); return err })
		count("a renewal", 1, func() error { _, err := session.KeepAlive(t.Context()); return err })
		count("a release", 1, func() error { return ticket.Leave(t.Context()) })
	}
}
