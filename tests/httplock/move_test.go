package httplock_test

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspserve"
)

// The server of a client that holds is killed, and another one of the same Redis adopts the lock,
// in each of its formats. It is released there.
func TestHeldLockMoves(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			url := backends.SharedRedis(t).URL() + "?strategy=" + strategy
			first, second := haspserve.New(t, url), haspserve.New(t, url)
			front := &balancer{}
			front.lead(first.Addr)
			proxy := httptest.NewServer(front)
			t.Cleanup(proxy.Close)
			c, beside := testkit.Client(t, "hasp+"+proxy.URL, hasp.WithTTL(calm)), testkit.Client(t, url)
			name := t.Name()
			l := testkit.LockDespiteErrors(t, c, name)
			front.lead(second.Addr)
			first.Kill()
			other := testkit.LockDespiteErrors(t, c, name+"-other") // moves the session, unless a renewal has
			// More than once if the answer came late, and the request was repeated.
			if n := front.adopted.Load(); n < 1 || !l.Held() {
				t.Fatalf("%d locks were adopted; held: %t, %v", n, l.Held(), l.Err())
			}
			if _, err := beside.Mutex(name).TryLock(t.Context()); err == nil {
				t.Fatal("another client has got it")
			}
			testkit.Release(t, other)
			testkit.Release(t, l)
			testkit.Release(t, testkit.LockDespiteErrors(t, beside, name))
		})
	}
}

// A client that waits is led to another server, while its own lives on. That one must not take the
// lock for a client that has gone, also in a store that does not show who waits; and what the next
// server tells is heard at once, not when the old one's events have nothing to say for seconds.
func TestWaiterMoves(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			url := backends.SharedRedis(t).URL() + "?strategy=" + strategy
			first, second := haspserve.New(t, url, "--ttl", "1m"), haspserve.New(t, url, "--ttl", "1m")
			front := &balancer{}
			front.lead(first.Addr)
			proxy := httptest.NewServer(front)
			t.Cleanup(proxy.Close)
			name, beside, requeued := t.Name(), testkit.Client(t, url), make(chan struct{}, 1)
			held := testkit.LockDespiteErrors(t, beside, name)
			var c *hasp.Client
			got := testkit.Waiting(t, name, func(o hasp.Option) *hasp.Client {
				c = testkit.Client(t, "hasp+"+proxy.URL, hasp.WithTTL(time.Minute), o, hasp.WithObserver(testkit.Observer(func(e hasp.Event) {
					if e.Kind == hasp.EventRequeued {
						requeued <- struct{}{}
					}
				})))
				return c
			})
			front.lead(second.Addr)
			testkit.LockDespiteErrors(t, c, name+"-other") // moves the session
			testkit.Await(t, "the waiter's new place", requeued)
			if strategy == "queue" {
				testkit.Eventually(t, "the waiter's entry", func() bool { return len(testkit.Entries(t, beside, name)) == 2 })
			}
			released := time.Now()
			testkit.Release(t, held)
			if l := testkit.Await(t, "the grant", got); l == nil {
				t.Fatal("no grant")
			} else if took := time.Since(released); took > 10*time.Second {
				t.Errorf("it was granted %s after the release", took)
			}
		})
	}
}

// The first request for a lock is done by a server whose answer does not come through, and repeated
// at another one. The first lives on, and later ends the session that its client has left. That
// must not free the lock, of which the store knows no more than the id.
func TestOldSessionEnds(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			url := backends.SharedRedis(t).URL() + "?strategy=" + strategy
			first, second := haspserve.New(t, url), haspserve.New(t, url)
			front := &repeating{balancer: &balancer{}, second: second.Addr}
			front.lead(first.Addr)
			proxy := httptest.NewServer(front)
			t.Cleanup(proxy.Close)
			c, beside := testkit.Client(t, "hasp+"+proxy.URL, hasp.WithTTL(calm)), testkit.Client(t, url)
			l := testkit.LockDespiteErrors(t, c, t.Name())
			q, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, "http://"+first.Addr+"/v1/session", nil)
			if err != nil {
				t.Fatal(err)
			}
			q.Header.Set("Hasp-Session", front.session)
			r, err := http.DefaultClient.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			if _ = r.Body.Close(); r.StatusCode != http.StatusNoContent {
				t.Fatalf("the first session: %s: this shows nothing", r.Status)
			}
			if other, err := beside.Mutex(t.Name()).TryLock(t.Context()); !errors.Is(err, hasp.ErrBusy) {
				t.Errorf("beside the holder, which thinks that it holds (%t): %v, %v", l.Held(), other, err)
			}
			testkit.Release(t, l)
		})
	}
}

// repeating has the first request for a lock done by one server, and takes it and all that follow
// to another.
type repeating struct {
	*balancer
	second string

	mu      sync.Mutex
	session string // that the request was of
}

func (r *repeating) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	if q.Method == http.MethodPut && r.session == "" {
		body, _ := io.ReadAll(q.Body)
		again := q.Clone(q.Context())
		again.Body, q.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(bytes.NewReader(body))
		r.balancer.ServeHTTP(httptest.NewRecorder(), again)
		r.session = q.Header.Get("Hasp-Session")
		r.lead(r.second)
	}
	r.mu.Unlock()
	r.balancer.ServeHTTP(w, q)
}
