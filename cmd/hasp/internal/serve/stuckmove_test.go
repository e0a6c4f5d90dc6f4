package serve_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
)

// longLived is a store that keeps entries for an hour and not for the TTL that a client asks for:
// on a busy machine none expires.
type longLived struct{ driver.Backend }

func (b longLived) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	o.TTL = time.Hour
	return b.Backend.Open(ctx, o)
}

// stuckRequests holds the answers to some requests back until the test ends.
type stuckRequests struct {
	never <-chan struct{}
	once  map[string]chan struct{} // by what: closed when the client has given the request up
	seen  chan string
}

func (s *stuckRequests) hold(q *http.Request, what string) (string, <-chan struct{}) {
	if s.once[what] != nil {
		return "", nil
	}
	gaveUp := make(chan struct{})
	s.once[what] = gaveUp
	context.AfterFunc(q.Context(), func() { close(gaveUp) })
	s.seen <- what
	return "", s.never
}

// One request of a move is led to a dead host. It is given up while keep-alives can still save the
// locks: long before a request that nothing depends on, which is the clock of this test.
func TestStuckMove(t *testing.T) {
	for what, stuck := range map[string]func(q *http.Request) bool{
		"a session is opened": func(q *http.Request) bool { return q.Method == http.MethodPost && q.URL.Path == "/v1/session" },
		"a lock is adopted":   func(q *http.Request) bool { return strings.HasSuffix(q.URL.Path, "/adopt") },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := newPairOf(t, func(b driver.Backend) driver.Backend { return longLived{b} }, nil, "")
			p.s = testkit.Session(t, p.b, 6*time.Second, func(id string, err error) { p.gone <- id })
			a, _ := p.lock(t, "a")
			never := make(chan struct{})
			t.Cleanup(sync.OnceFunc(func() { close(never) }))
			held := &stuckRequests{never, map[string]chan struct{}{}, make(chan string, 2)}
			p.front.split(func(q *http.Request) (string, <-chan struct{}) {
				switch {
				case stuck(q):
					return held.hold(q, "move")
				case q.URL.Path == "/v1/queue":
					return held.hold(q, "list")
				}
				return "", nil
			})
			go func() { _, _ = p.b.List(t.Context(), "a", 0) }() // it fails
			testkit.Await(t, "the request that nothing depends on", held.seen)
			time.Sleep(500 * time.Millisecond) // that one is the first to end if both may take as long
			p.front.lead(p.addrs[1])
			go func() { _, _ = p.s.Ticket(testkit.Request("b")).Enqueue(t.Context()) }() // moves, or waits for who does
			testkit.Await(t, "the move", held.seen)
			kept := make(chan error, 1)
			go func() {
				for {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					_, err := p.s.KeepAlive(ctx)
					cancel()
					if err == nil || errors.Is(err, driver.ErrGone) || t.Context().Err() != nil {
						kept <- err
						return
					}
				}
			}()
			p.front.mu.Lock()
			move, list := held.once["move"], held.once["list"]
			p.front.mu.Unlock()
			select {
			case <-move:
			case <-list:
				t.Error("the move has waited for as long as any request may")
			}
			if err := testkit.Await(t, "a keep-alive", kept); err != nil {
				t.Error(err)
			}
			p.wantGone(t)
			if v, err := a.Enqueue(t.Context()); err != nil || !v.Held {
				t.Errorf("asked again: %+v, %v", v, err)
			}
		})
	}
}

// A move of many locks meets a server that cannot be reached. It ends with the adoptions that are
// under way, and the next attempt is on fresh connections: a dead host would be waited for again
// and again.
func TestMoveEndsAtAnError(t *testing.T) {
	p := newPair(t, nil, "")
	never, polls := make(chan struct{}), make(chan struct{}, 10)
	t.Cleanup(sync.OnceFunc(func() { close(never) }))
	adoptions, dead := 0, true // guarded by the front's mutex
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		switch {
		case strings.HasSuffix(q.URL.Path, "/events"):
			polls <- struct{}{}
			return p.addrs[0], never
		case strings.HasSuffix(q.URL.Path, "/adopt") && dead:
			adoptions++
			return "127.0.0.1:1", nil // where no server is
		}
		return "", nil
	})
	for i := range 40 {
		p.lock(t, fmt.Sprint("a", i))
	}
	testkit.Await(t, "the request for losses, which moves nothing from here on", polls)
	p.front.lead(p.addrs[1])
	if _, err := p.s.KeepAlive(t.Context()); err == nil || errors.Is(err, driver.ErrGone) {
		t.Fatalf("no lock was adopted, and the keep-alive: %v", err)
	}
	p.front.mu.Lock()
	if adoptions == 0 || adoptions > 16 {
		t.Errorf("%d adoptions were tried, of which 16 at the same time", adoptions)
	}
	dead = false
	p.front.mu.Unlock()
	p.keepAlive(t)
	p.wantGone(t)
}

// The answer about the new session is late, and a keep-alive of the old one, sent after that was
// asked for, succeeds meanwhile. The core trusts the locks from then on, and the new session's time
// began before: so that is kept alive before it adopts the first lock.
func TestKeptAliveBeforeTheMove(t *testing.T) {
	for what, next := range map[string]string{"a lock is held": "POST locks/1/adopt", "a lock is waited for": "POST evict"} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, nil, "")
			opening, answer := make(chan struct{}, 10), make(chan struct{})
			answerNow := sync.OnceFunc(func() { close(answer) })
			t.Cleanup(answerNow)
			old, steps := "", []string(nil) // guarded by the front's mutex
			p.front.split(func(q *http.Request) (string, <-chan struct{}) {
				session := q.Header.Get(httpapi.SessionHeader)
				switch {
				case q.URL.Path == "/v1/session" && q.Method == http.MethodPost:
					opening <- struct{}{}
					return p.addrs[1], answer
				case old == "":
					old = session
				}
				if session == old {
					return p.addrs[0], nil
				}
				if !strings.HasSuffix(q.URL.Path, "/events") {
					_, step, _ := strings.Cut(q.URL.Path, "/v1/")
					steps = append(steps, q.Method+" "+step)
				}
				return p.addrs[1], nil
			})
			if next == "POST evict" {
				testkit.Lock(t, testkit.ClientOn(t, p.store.Backend()), "a")
				if v, err := p.s.Ticket(testkit.Request("a")).Enqueue(t.Context()); err != nil || v.Held {
					t.Fatal(v, err)
				}
			} else {
				p.lock(t, "a")
			}
			go p.first.Drain(t.Context())
			testkit.Await(t, "the new session to be asked for", opening)
			if granted, err := p.s.KeepAlive(t.Context()); err != nil || granted != time.Minute {
				t.Fatalf("a keep-alive at a server that is about to end: %s, %v", granted, err)
			}
			answerNow()
			testkit.Eventually(t, next, func() bool {
				p.front.mu.Lock()
				defer p.front.mu.Unlock()
				return slices.Contains(steps, next)
			})
			p.front.mu.Lock()
			defer p.front.mu.Unlock()
			if steps[0] != "POST session/keepalive" {
				t.Errorf("at the new server: %q, and no keep-alive first", steps)
			}
		})
	}
}
