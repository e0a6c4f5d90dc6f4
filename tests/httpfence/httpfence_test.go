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

func (r resource) client(ctx context.Context, name string, token uint64) (*http.Client, error) {
	return httpfence.With(ctx, nil, fencing.GrantOf(name, token), r.at("/fenced", name))
}

var clients fencetest.Writers[*http.Client]

func (r resource) Advance(ctx context.Context, name string, token uint64) error {
	_, err := r.client(ctx, name, token)
	return err
}

func (r resource) Write(ctx context.Context, name string, token uint64, value string) error {
	c, err := clients.Get(r.address, name, token, func() (*http.Client, error) { return r.client(ctx, name, token) })
	if err != nil {
		return err
	}
	_, err = do(ctx, c, http.MethodPut, r.at("/fenced", name), value)
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
	lease := fencing.GrantOf("n", 7)
	if _, err := httpfence.With(t.Context(), nil, lease, r.at("/open", "n")); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("an address that compares nothing: %v", err)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusPreconditionFailed) // as If-Match has it
	}))
	defer s.Close()
	if _, err := httpfence.With(t.Context(), nil, lease, s.URL); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("a 412 of another reason: %v", err)
	}
}

// A client writes to the server that has been told its token, and to no other; a server to which
// With was redirected is the one that has been told.
func TestOtherServer(t *testing.T) {
	r, other := resource{serve(t)}, resource{serve(t)}
	c, err := r.client(t.Context(), "n", 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := do(t.Context(), c, http.MethodPut, r.at("/fenced", "n"), "here"); err != nil {
		t.Error(err)
	}
	if _, err := do(t.Context(), c, http.MethodPut, other.at("/fenced", "n"), "there"); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("a server without With: %v", err)
	}
	if got, err := other.Read(t.Context(), "n"); got != "" || err != nil {
		t.Errorf("the other server has %q, %v", got, err)
	}
	front := httptest.NewServer(http.RedirectHandler(other.at("/fenced", "n"), http.StatusTemporaryRedirect))
	defer front.Close()
	c, err = httpfence.With(t.Context(), nil, fencing.GrantOf("n", 8), front.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := do(t.Context(), c, http.MethodPut, other.at("/fenced", "n"), "there"); err != nil {
		t.Errorf("the server that With was redirected to: %v", err)
	}
	if _, err := do(t.Context(), c, http.MethodPut, front.URL, "nowhere"); !errors.Is(err, fencing.ErrInvalid) {
		t.Errorf("the server that redirects: %v", err)
	}
}

// With keeps what the caller's client does with its requests.
func TestBaseClient(t *testing.T) {
	r, sent := resource{serve(t)}, 0
	base := &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		sent++
		return http.DefaultTransport.RoundTrip(req)
	})}
	c, err := httpfence.With(t.Context(), base, fencing.GrantOf("n", 7), r.at("/fenced", "n"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := do(t.Context(), c, http.MethodPut, r.at("/fenced", "n"), "v"); err != nil || sent != 2 {
		t.Errorf("%d requests by the transport of the caller, %v", sent, err)
	}
	if _, err := do(t.Context(), base, http.MethodPut, r.at("/fenced", "n"), "v"); err == nil || !strings.Contains(err.Error(), "428") {
		t.Errorf("the caller's own client was changed: %v", err)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
	c, err := r.client(t.Context(), "n", 7)
	for err != nil { // on a busy machine the time-out can also be over for the request of With
		if !errors.Is(err, fencing.ErrInvalid) {
			t.Fatal(err)
		}
		c, err = r.client(t.Context(), "n", 7)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := do(context.Background(), c, http.MethodPut, r.at("/fenced", "n"), "late")
		answered <- err
	}()
	<-s.begun
	if err := <-answered; err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("the writer was told %v", err)
	}
	advanced := make(chan bool, 1)
	go func() {
		_, _ = fences.Of("n").With(fencing.GrantOf("n", 8))
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
	var lease fencing.Grant
	var ok bool
	h := httpfence.Handler(&fencing.Fences{}, func(*http.Request) string { return "n" }, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		lease, ok = httpfence.FromContext(r.Context())
	}))
	r := httptest.NewRequest(http.MethodPut, "/", nil)
	r.Header.Set(httpfence.LockHeader, "n")
	r.Header.Set(httpfence.TokenHeader, "88")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if !ok || lease.Name() != "n" || lease.Token() != 88 {
		t.Errorf("in the handler: %v, %t", lease, ok)
	}
	if _, ok := httpfence.FromContext(t.Context()); ok {
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
