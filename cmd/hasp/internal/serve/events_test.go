package serve_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// changed reads events until one is about the lock, and answers it.
func (c *api) changed(lock uint64) (found httpapi.Changed) {
	c.t.Helper()
	for after := uint64(0); ; {
		var e httpapi.Events
		c.want(200, "GET", fmt.Sprintf("/v1/session/events?wait_ms=30000&after=%d", after), nil, &e)
		for _, x := range e.Changed {
			if x.Lock == lock {
				return x
			}
		}
		if len(e.Changed)+len(e.Lost) == 0 {
			c.t.Fatalf("no word of lock %d: %+v", lock, e)
		}
		after = e.Version
	}
}

// A grant is told by the session's events, however the lock came to wait: by a request that did not
// wait, or by one whose time is over. It is told again until it was seen.
func TestGrantByEvents(t *testing.T) {
	for name, wait := range map[string]int64{"a request that does not wait": 0, "one whose time is over": 1000} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := with(t, serve.Options{})
				other := &api{t: t, s: s}
				other.open(time.Minute)
				before := other.lock("1", "a")
				c.open(time.Minute)
				var l httpapi.Lock
				c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: wait}, &l)
				if l.State != httpapi.Waiting {
					t.Fatalf("another holds it: %+v", l)
				}
				other.want(204, "DELETE", "/v1/locks/1", nil, nil)
				synctest.Wait()
				for range 2 { // the answer to the first was lost
					if x := c.changed(1); x.State != httpapi.Held || x.Token <= before.Token {
						t.Errorf("told %+v after token %d", x, before.Token)
					}
				}
				var e httpapi.Events
				c.want(200, "GET", "/v1/session/events?after=1&wait_ms=10", nil, &e)
				if len(e.Changed) != 0 {
					t.Errorf("it was seen, and is told again: %+v", e)
				}
				if again := c.lock("1", "a"); again.State != httpapi.Held {
					t.Errorf("asked again: %+v", again)
				}
			})
		})
	}
}

// failsLater has Wait fail when it is told to, as when its store is away.
type failsLater struct {
	driver.Ticket
	fail <-chan error
}

func (t failsLater) Wait(ctx context.Context) (driver.Verdict, error) {
	select {
	case err := <-t.fail:
		if err == nil {
			panic("a fault")
		}
		return driver.Verdict{}, err
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
}

// What the server hears while no request waits is never kept to itself: an error of the store, the
// end of the entry, and a fault in it.
func TestWaitEndsByEvents(t *testing.T) {
	for name, why := range map[string]error{"the store is away": errors.New("away"), "the entry has gone": driver.ErrGone, "a fault": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fail := make(chan error)
				c, _ := with(t, serve.Options{Store: ticketStore{memlock.New().Backend(), func(t driver.Ticket, _ driver.Request) driver.Ticket {
					return failsLater{t, fail}
				}}})
				c.open(time.Minute)
				c.lock("1", "a")
				c.lock("2", "a")
				fail <- why
				synctest.Wait()
				if why == driver.ErrGone {
					var e httpapi.Events
					c.want(200, "GET", "/v1/session/events?wait_ms=30000", nil, &e)
					if len(e.Lost) != 1 || e.Lost[0].Lock != 2 {
						t.Errorf("told %+v", e)
					}
					return
				}
				if x := c.changed(2); x.State != httpapi.Waiting {
					t.Errorf("told %+v", x)
				}
				if l := c.lock("2", "a"); l.State != httpapi.Waiting {
					t.Errorf("asked again: %+v", l)
				}
				c.want(204, "DELETE", "/v1/locks/1", nil, nil)
			})
		})
	}
}

// tellsAtOnce has Wait tell, some times, that another is held now.
type tellsAtOnce struct {
	driver.Ticket
	left atomic.Int32
}

func (t *tellsAtOnce) Wait(ctx context.Context) (driver.Verdict, error) {
	if n := t.left.Add(-1); n > 0 {
		return driver.Verdict{Holder: fmt.Sprintf(`another %d`, n)}, nil
	}
	<-ctx.Done()
	return driver.Verdict{}, ctx.Err()
}

// A request that no longer waits is answered with what it has learned itself: what the server hears
// from then on is told by the events. The race detector sees it if the two share the answer.
func TestAnswerBesideNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := with(t, serve.Options{Store: ticketStore{memlock.New().Backend(), func(t driver.Ticket, _ driver.Request) driver.Ticket {
			tells := &tellsAtOnce{Ticket: t}
			tells.left.Store(10)
			return tells
		}}})
		c.open(time.Minute)
		c.lock("1000", "a")
		for n := range 500 {
			var l httpapi.Lock
			c.want(200, "PUT", fmt.Sprintf("/v1/locks/%d", n+1), httpapi.Acquire{Name: "a"}, &l)
			if l.State != httpapi.Waiting || strings.Contains(l.Holder, "another") {
				t.Fatalf("answered %+v", l)
			}
		}
	})
}

// A client with many waiting locks has one request open, and is granted each.
func TestOneOpenRequest(t *testing.T) {
	_, addr := start(t, serve.Options{Store: memlock.New().Backend()})
	var underway, most, waits atomic.Int32
	f := newFront(t, addr)
	f.split(func(q *http.Request) (string, <-chan struct{}) {
		if q.URL.Path == "/v1/session/events" {
			for n := underway.Add(1); ; {
				if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			context.AfterFunc(q.Context(), func() { underway.Add(-1) })
		}
		if strings.HasSuffix(q.URL.Path, "/wait") {
			waits.Add(1)
		}
		return "", nil
	})
	c := testkit.ClientOn(t, open(t, f.addr(), ""))
	other := testkit.ClientOn(t, open(t, addr, ""))
	const n = 100
	var held []func()
	for i := range n {
		l := testkit.Lock(t, other, fmt.Sprint("a", i))
		held = append(held, func() { testkit.Release(t, l) })
	}
	var all sync.WaitGroup
	for i := range n {
		next := testkit.Queued(t, c, fmt.Sprint("a", i))
		all.Go(func() { testkit.Release(t, testkit.Granted(t, next)) })
	}
	for _, release := range held {
		release()
	}
	all.Wait()
	if most.Load() > 2 || waits.Load() != 0 { // the next is sent while the end of the one before is noted
		t.Errorf("%d requests for events were open at once, and %d waited for a lock", most.Load(), waits.Load())
	}
}

// A client that closes gives up its request for news. That is no failure of the store's, so it is
// no 502 to those who watch the log and the metrics.
func TestClientGoneIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := with(t, serve.Options{})
		c.open(time.Minute)
		c.cutEvents()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/metrics", nil))
		if counted := w.Body.String(); !strings.Contains(counted, `{route="GET /v1/session/events",status="499"} 1`) || strings.Contains(counted, "502") {
			t.Error(counted)
		}
	})
}

// cutEvents asks for news, and gives that up when the server waits for some.
func (c *api) cutEvents() {
	ctx, gone := context.WithCancel(c.t.Context())
	q := httptest.NewRequestWithContext(ctx, "GET", "http://localhost/v1/session/events?wait_ms=30000", nil)
	q.Header.Set(httpapi.SessionHeader, c.session)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.s.ServeHTTP(httptest.NewRecorder(), q)
	}()
	synctest.Wait()
	gone()
	<-ended
	synctest.Wait()
}

// waitsCounted counts the waits that are under way.
type waitsCounted struct {
	driver.Ticket
	n *atomic.Int32
}

func (t waitsCounted) Wait(ctx context.Context) (driver.Verdict, error) {
	t.n.Add(1)
	defer t.n.Add(-1)
	return t.Ticket.Wait(ctx)
}

// unordered is a store without a queue.
type unordered struct{ driver.Backend }

func (s unordered) Traits() driver.Traits {
	traits := s.Backend.Traits()
	traits.FIFO = false
	return traits
}

// For a client that has not asked for news yet, or gives up its request for them, the server does
// not wait where the store shows no waiters, neither for what waited then nor for what comes after it. The next request tells that it
// is lost. A place in a queue stays.
func TestUnheardIsNotWaitedFor(t *testing.T) {
	for name, queue := range map[string]bool{"no queue": false, "a queue": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var waits atomic.Int32
				store := memlock.New().Backend()
				if !queue {
					store = unordered{store}
				}
				c, s := with(t, serve.Options{Store: ticketStore{store, func(t driver.Ticket, _ driver.Request) driver.Ticket {
					return waitsCounted{t, &waits}
				}}})
				other := &api{t: t, s: s}
				other.open(time.Minute)
				other.lock("1", "a")
				c.open(time.Minute)
				count := func(when string, want int32) {
					t.Helper()
					if synctest.Wait(); waits.Load() != want {
						t.Errorf("%s the server waits for %d locks, not %d", when, waits.Load(), want)
					}
				}
				stay := int32(0)
				if queue {
					stay = 1
				}
				c.lock("1", "a")
				count("before it listens", stay)
				c.want(200, "GET", "/v1/session/events?wait_ms=0", nil, nil)
				count("when it listens", 1)
				c.cutEvents()
				count("unheard", stay)
				c.lock("2", "a")
				count("asked by one who does not listen", 2*stay)
				var e httpapi.Events
				c.want(200, "GET", "/v1/session/events?wait_ms=10", nil, &e)
				if queue {
					if len(e.Lost) != 0 {
						t.Errorf("told %+v", e)
					}
					return
				}
				if len(e.Lost) != 2 {
					t.Errorf("told %+v", e)
				}
				other.want(204, "DELETE", "/v1/locks/1", nil, nil)
				if l := other.lock("2", "a"); l.State != httpapi.Held {
					t.Errorf("after what the server no longer waits for: %+v", l)
				}
				c.lock("3", "a")
				count("asked again", 1)
			})
		})
	}
}

// A client that has been led to another server may have had no request for news open there: none was
// sent yet, or one had just been answered. The server waits for the next one for a while, and then no
// more: what waits is lost, and leaves nothing in the store.
func TestNewsNotAskedFor(t *testing.T) {
	for name, asked := range map[string]bool{"since an answer": true, "at all": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, s := with(t, serve.Options{Store: unordered{memlock.New().Backend()}})
				other := &api{t: t, s: s}
				other.open(time.Minute)
				other.lock("1", "a")
				c.open(time.Minute)
				c.lock("1", "a")
				wait := 59 * time.Second
				if asked {
					c.want(200, "GET", "/v1/session/events?wait_ms=0", nil, nil)
					wait = 4 * time.Second
				}
				queue := func() int {
					var q httpapi.Queue
					other.want(200, "GET", "/v1/queue?name=a", nil, &q)
					return len(q.Entries)
				}
				time.Sleep(wait)
				if n := queue(); n != 2 {
					t.Fatalf("%d entries after %s", n, wait)
				}
				for _, each := range []*api{c, other} {
					each.want(200, "POST", "/v1/session/keepalive", nil, nil)
				}
				time.Sleep(2 * time.Second)
				if n := queue(); n != 1 {
					t.Errorf("%d entries after %s", n, wait+2*time.Second)
				}
				var e httpapi.Events
				c.want(200, "GET", "/v1/session/events?wait_ms=0", nil, &e)
				if len(e.Lost) != 1 {
					t.Errorf("told %+v", e)
				}
				c.lock("2", "a") // it is here again
				other.want(204, "DELETE", "/v1/locks/1", nil, nil)
				if x := c.changed(2); x.State != httpapi.Held {
					t.Errorf("told %+v", x)
				}
			})
		})
	}
}
