//go:build unix

package httpfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/httpfence"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/fencetest"
	_ "github.com/hasplock/hasp/redislock"
)

func TestMain(m *testing.M) { fencetest.Main(m, open) }

// cells is a service: a text at every path, which a lock of the same name protects. Below
// /open the same can be written without.
type cells struct {
	mu   sync.Mutex
	text map[string]string
}

func (c *cells) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("name")
	if r.Method == http.MethodPut {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.text[name] = string(body)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprint(w, c.text[name])
}

func lockOf(r *http.Request) string { return r.URL.Query().Get("name") }

func serve(t testing.TB) string {
	t.Helper()
	c := &cells{text: map[string]string{}}
	mux := http.NewServeMux()
	mux.Handle("/fenced", httpfence.Handler(&fencing.Fences{}, lockOf, c))
	mux.Handle("/open", c)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// resource speaks to the service at an address.
type resource struct{ address string }

func open(_ context.Context, target string) (fencetest.Resource, error) {
	return resource{target}, nil
}

func (r resource) at(path, name string) string {
	return r.address + path + "?name=" + url.QueryEscape(name)
}

func client(name string, token uint64) *http.Client {
	return &http.Client{Transport: httpfence.Transport(nil, name, token)}
}

func (r resource) Advance(ctx context.Context, name string, token uint64) error {
	return httpfence.Advance(ctx, client(name, token), r.at("/fenced", name))
}

func (r resource) Write(ctx context.Context, name string, token uint64, value string) error {
	_, err := do(ctx, client(name, token), http.MethodPut, r.at("/fenced", name), value)
	return err
}

func (r resource) Overwrite(ctx context.Context, name, value string) error {
	_, err := do(ctx, http.DefaultClient, http.MethodPut, r.at("/open", name), value)
	return err
}

func (r resource) Read(ctx context.Context, name string) (string, error) {
	return do(ctx, http.DefaultClient, http.MethodGet, r.at("/fenced", name), "")
}

func do(ctx context.Context, c *http.Client, method, address, body string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if stale := httpfence.Err(resp); stale != nil {
		return "", stale
	}
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return string(text), err
}

func TestRule(t *testing.T) { fencetest.Rule(t, open, serve(t)) }

func TestPaused(t *testing.T) {
	fencetest.Paused(t, open, backends.SharedRedis(t).URL(), serve(t))
}

func TestLoad(t *testing.T) { fencetest.Load(t, open, serve(t), serve(t)) }

// Every way to get the headers wrong, and what it is answered; nothing is written by any.
func TestRefusals(t *testing.T) {
	r := resource{serve(t)}
	if err := r.Write(t.Context(), "a/b", 7, "before"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		method, lock, token string
		want                int
	}{
		{"PUT", "a%2Fb", "7", 200},
		{"PUT", "a/b", "7", 200},
		{"PUT", "", "", 428},
		{"POST", "", "", 428},
		{"DELETE", "", "", 428},
		{"PUT", "a%2Fb", "6", 412},
		{"GET", "a%2Fb", "6", 412}, // a client that says it holds the lock learns that it does not
		{"GET", "", "", 200},
		{"PUT", "a%2Fb", "", 400},
		{"PUT", "", "7", 400},
		{"GET", "", "7", 400},
		{"PUT", "other", "99", 400},
		{"PUT", "%zz", "7", 400},
		{"PUT", "a%2Fb", "seven", 400},
		{"PUT", "a%2Fb", "-7", 400},
		{"PUT", "a%2Fb", "0", 400},
		{"PUT", "a%2Fb", "18446744073709551615", 400},
	} {
		before := ""
		if c.want != 200 {
			before = "kept"
			if err := r.Write(t.Context(), "a/b", 7, before); err != nil {
				t.Fatal(err)
			}
		}
		req, err := http.NewRequest(c.method, r.at("/fenced", "a/b"), strings.NewReader("after"))
		if err != nil {
			t.Fatal(err)
		}
		if c.lock != "" {
			req.Header.Set(httpfence.LockHeader, c.lock)
		}
		if c.token != "" {
			req.Header.Set(httpfence.TokenHeader, c.token)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s lock %q token %q: %s, want %d", c.method, c.lock, c.token, resp.Status, c.want)
		}
		if got, err := r.Read(t.Context(), "a/b"); before != "" && got != before {
			t.Errorf("%s lock %q token %q: the cell is %q, %v", c.method, c.lock, c.token, got, err)
		}
	}
}

// An Advance that no fence has compared is an error, and a 412 from another source is not a stale
// token.
func TestNobodyCompares(t *testing.T) {
	r := resource{serve(t)}
	if err := httpfence.Advance(t.Context(), client("n", 7), r.at("/open", "n")); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("an address that compares nothing: %v", err)
	}
	if err := httpfence.Advance(t.Context(), http.DefaultClient, r.at("/fenced", "n")); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("a client without a token: %v", err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPreconditionFailed) // as If-Match has it
	}))
	defer s.Close()
	resp, err := client("n", 7).Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if err := httpfence.Err(resp); err != nil {
		t.Errorf("a 412 of another reason: %v", err)
	}
}

// slow is a handler that writes only when it is let, and notes it.
type slow struct {
	begun, let chan struct{}
	written    atomic.Bool
}

func (s *slow) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodHead {
		return
	}
	s.begun <- struct{}{}
	<-s.let
	s.written.Store(true)
}

// S3: a timeout handler answers for a handler that still writes. Inside of the fence it would
// let a greater token in before that write; outside it answers as soon, and the greater token
// waits.
func TestTimeoutHandler(t *testing.T) {
	s := &slow{begun: make(chan struct{}), let: make(chan struct{})}
	fences := &fencing.Fences{}
	server := httptest.NewServer(http.TimeoutHandler(httpfence.Handler(fences, lockOf, s), 10*time.Millisecond, ""))
	defer server.Close()
	r := resource{server.URL}
	answered := make(chan error, 1)
	go func() { answered <- r.Write(context.Background(), "n", 7, "late") }()
	<-s.begun
	if err := <-answered; err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("the writer was told %v", err)
	}
	advanced := make(chan bool, 1)
	go func() {
		_ = fences.Of("n").Advance(8)
		advanced <- s.written.Load()
	}()
	select {
	case <-advanced:
		t.Fatal("a greater token was let in while the write of a smaller one was still to come")
	case <-time.After(50 * time.Millisecond): // the wrong order shows nearly always
	}
	close(s.let)
	if !<-advanced {
		t.Error("a greater token was let in before the write of a smaller one was done")
	}
}

func TestTimeoutHandlerInside(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("it was taken: when it gives up, a write continues without a fence")
		}
	}()
	httpfence.Handler(&fencing.Fences{}, lockOf, http.TimeoutHandler(&cells{}, time.Second, ""))
}

func TestFromContext(t *testing.T) {
	var name string
	var token uint64
	var ok bool
	h := httpfence.Handler(&fencing.Fences{}, func(*http.Request) string { return "n" }, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		name, token, ok = httpfence.FromContext(r.Context())
	}))
	r := httptest.NewRequest(http.MethodPut, "/", nil)
	r.Header.Set(httpfence.LockHeader, "n")
	r.Header.Set(httpfence.TokenHeader, "88")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if name != "n" || token != 88 || !ok {
		t.Errorf("in the handler: %q, %d, %t", name, token, ok)
	}
	if _, _, ok := httpfence.FromContext(t.Context()); ok {
		t.Error("a context of no request has a token")
	}
}

func BenchmarkPut(b *testing.B) {
	r := resource{serve(b)}
	b.Run("unfenced", func(b *testing.B) {
		for b.Loop() {
			if err := r.Overwrite(b.Context(), "n", "v"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("fenced", func(b *testing.B) {
		for b.Loop() {
			if err := r.Write(b.Context(), "n", 7, "v"); err != nil {
				b.Fatal(err)
			}
		}
	})
}
