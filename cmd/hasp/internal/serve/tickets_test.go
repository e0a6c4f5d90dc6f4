package serve_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/memlock"
)

// ticketStore is a store whose tickets a test makes, each out of the real one.
type ticketStore struct {
	driver.Backend
	ticket func(driver.Ticket, driver.Request) driver.Ticket
}

func (b ticketStore) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return ticketSession{s, b}, granted, err
}

func (b ticketStore) Evict(ctx context.Context, name, id, note string) error {
	return b.Backend.(driver.Evicter).Evict(ctx, name, id, note)
}

func (b ticketStore) LastEviction(ctx context.Context, name string) (string, error) {
	return b.Backend.(driver.Evicter).LastEviction(ctx, name)
}

type ticketSession struct {
	driver.Session
	b ticketStore
}

func (s ticketSession) Ticket(r driver.Request) driver.Ticket {
	return s.b.ticket(s.Session.Ticket(r), r)
}

// tokenless is a store whose locks have no tokens, as Redis with fence=off.
type tokenless struct{ ticketStore }

func newTokenless(b driver.Backend) driver.Backend {
	return tokenless{ticketStore{b, func(t driver.Ticket, r driver.Request) driver.Ticket { return tokenlessTicket{t, b, r.Name} }}}
}

func (b tokenless) Traits() driver.Traits {
	t := b.Backend.Traits()
	t.Fencing = false
	return t
}

type tokenlessTicket struct {
	driver.Ticket
	b    driver.Backend
	name string
}

func (t tokenlessTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return withoutToken(t.Ticket.Enqueue(ctx))
}

func (t tokenlessTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	return withoutToken(t.Ticket.Wait(ctx))
}

func (t tokenlessTicket) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	all, err := t.b.List(ctx, t.name, 0)
	if err != nil || seq != 0 {
		return driver.Verdict{}, driver.ErrGone
	}
	for _, e := range all {
		if e.ID == id {
			seq = e.Seq
		}
	}
	return withoutToken(t.Ticket.(driver.Adopter).Adopt(ctx, id, seq))
}

func withoutToken(v driver.Verdict, err error) (driver.Verdict, error) {
	v.Token = 0
	return v, err
}

// What is held is held without a token as well. It was taken for what waits: removed from the
// store, for the next to be granted it, before its holder was told.
func TestMoveWithoutTokens(t *testing.T) {
	p := newPairOf(t, newTokenless, nil, "")
	a, v := p.lock(t, "a")
	if v.Token != 0 {
		t.Fatalf("the store has given a token: %+v", v)
	}
	beside := testkit.ClientOn(t, p.store.Backend())
	next := testkit.Queued(t, beside, "a")
	before := p.entries(t, "a")

	p.front.lead(p.addrs[1])
	p.keepAlive(t)
	after := p.entries(t, "a")
	if len(after) != 2 || after[0].Seq != before[0].Seq || after[0].Session == before[0].Session {
		t.Errorf("the store has %+v, and had %+v", after, before)
	}
	p.wantGone(t)
	if err := a.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	testkit.Release(t, testkit.Granted(t, next))
}

// adoptsLater has adoptions wait until begin is closed.
type adoptsLater struct {
	driver.Ticket
	asked chan struct{}
	begin <-chan struct{}
}

func (t adoptsLater) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	t.asked <- struct{}{}
	<-t.begin
	return t.Ticket.(driver.Adopter).Adopt(ctx, id, seq)
}

func (t adoptsLater) Publish(ctx context.Context, value []byte) error {
	return t.Ticket.(driver.Publisher).Publish(ctx, value)
}

// A lock is released while its session moves: the server that it leaves has done it when the other
// one looks for the lock. The release was done, and the lock not lost before.
func TestReleaseWhileItMoves(t *testing.T) {
	asked, adopt := make(chan struct{}, 1), make(chan struct{})
	adoptNow := sync.OnceFunc(func() { close(adopt) })
	p := newPairOf(t, func(b driver.Backend) driver.Backend {
		return ticketStore{b, func(t driver.Ticket, _ driver.Request) driver.Ticket { return adoptsLater{t, asked, adopt} }}
	}, nil, "")
	t.Cleanup(adoptNow)
	a, _ := p.lock(t, "a")
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if q.Method == http.MethodDelete && strings.HasPrefix(q.URL.Path, "/v1/locks/") {
			return p.addrs[0], nil
		}
		return "", nil
	})
	p.front.lead(p.addrs[1])
	moved := make(chan error, 1)
	go func() {
		_, err := p.s.KeepAlive(t.Context())
		moved <- err
	}()
	testkit.Await(t, "the adoption", asked)
	left := make(chan error, 1)
	go func() { left <- a.Leave(t.Context()) }()
	testkit.Eventually(t, "the release", func() bool { return len(p.entries(t, "a")) == 0 })
	time.Sleep(50 * time.Millisecond) // for its answer; if that comes later this shows nothing
	adoptNow()
	if err := testkit.Await(t, "the answer to the release", left); err != nil {
		t.Errorf("released, and told: %v", err)
	}
	if err := testkit.Await(t, "the move", moved); err != nil {
		t.Error(err)
	}
	p.wantGone(t)
}

// leavesLate answers no release before its context ends, except from the second on.
type leavesLate struct {
	driver.Ticket
	mu   sync.Mutex
	left int
}

func (t *leavesLate) Leave(ctx context.Context) error {
	t.mu.Lock()
	t.left++
	first := t.left == 1
	t.mu.Unlock()
	if !first {
		return t.Ticket.Leave(ctx)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (t *leavesLate) Enqueue(ctx context.Context) (driver.Verdict, error) {
	t.mu.Lock()
	left := t.left > 0
	t.mu.Unlock()
	if left {
		return driver.Verdict{}, driver.ErrGone // as every ticket that has left
	}
	return t.Ticket.Enqueue(ctx)
}

// A request for a lock comes late, while its release has no answer yet. It neither ends the release
// nor has the lock forgotten: a release that is repeated is done.
func TestLateRequestAndRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, _ := with(t, serve.Options{Store: ticketStore{store.Backend(), func(t driver.Ticket, _ driver.Request) driver.Ticket {
			return &leavesLate{Ticket: t}
		}}})
		c.open(time.Minute)
		c.lock("1", "a")
		ended := make(chan int, 1)
		go func() { ended <- c.do("DELETE", "/v1/locks/1", nil, nil) }()
		synctest.Wait()
		c.refused(httpapi.Gone, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a"})
		if status := <-ended; status == http.StatusNoContent || status == http.StatusGone {
			t.Errorf("a release without an answer: %d", status)
		}
		c.want(204, "DELETE", "/v1/locks/1", nil, nil)
		if all, err := store.Backend().List(t.Context(), "a", 0); err != nil || len(all) != 0 {
			t.Errorf("left in the store: %+v, %v", all, err)
		}
	})
}

// A repeated request says no_wait, and the first has queued: the lock keeps its place, and can be
// released.
func TestNoWaitAfterQueueing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := with(t, serve.Options{})
		other := &api{t: t, s: s}
		other.open(time.Minute)
		other.lock("1", "a")
		c.open(time.Minute)
		var l httpapi.Lock
		c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 1}, &l)
		c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", NoWait: true}, &l)
		if l.State != httpapi.Waiting {
			t.Errorf("asked again: %+v", l)
		}
		other.want(204, "DELETE", "/v1/locks/1", nil, nil)
		c.want(204, "DELETE", "/v1/locks/1", nil, nil)
		var q httpapi.Queue
		c.want(200, "GET", "/v1/queue?name=a", nil, &q)
		if len(q.Entries) != 0 {
			t.Errorf("left in the store: %+v", q.Entries)
		}
	})
}

// triesOnce has no answer the first time: its store is away.
type triesOnce struct {
	driver.Ticket
	asked bool
}

func (t *triesOnce) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if !t.asked {
		t.asked = true
		return driver.Verdict{}, errors.New("away")
	}
	return t.Ticket.Enqueue(ctx)
}

// A try is not answered, and the repeated request says that it waits. It is a try still, which is
// in no queue: its client hears so, and does not wait for a grant that will never come.
func TestWaitAfterATry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memlock.New()
		c, s := with(t, serve.Options{Store: ticketStore{store.Backend(), func(t driver.Ticket, r driver.Request) driver.Ticket {
			if r.NoWait {
				return &triesOnce{Ticket: t}
			}
			return t
		}}})
		other := &api{t: t, s: s}
		other.open(time.Minute)
		other.lock("1", "a")
		c.open(time.Minute)
		c.refused(httpapi.Unknown, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", NoWait: true})
		var l httpapi.Lock
		c.want(200, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 20_000}, &l)
		if l.State != httpapi.Busy {
			t.Errorf("asked again: %+v", l)
		}
		c.refused(httpapi.Gone, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Wait: 1})
		c.want(200, "PUT", "/v1/locks/2", httpapi.Acquire{Name: "a", Wait: 1}, &l)
		if l.State != httpapi.Waiting {
			t.Errorf("the next number: %+v", l)
		}
	})
}

// answersLate has the answer to a request for a lock wait until now is closed.
type answersLate struct {
	driver.Ticket
	now <-chan struct{}
}

func (t answersLate) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.Ticket.Enqueue(ctx)
	<-t.now
	return v, err
}

// A session is closed while the store's answer is on its way, that a lock of it waits. The lock
// does not count as waiting from then on.
func TestWaitsInAClosedSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := make(chan struct{})
		c, s := with(t, serve.Options{Store: ticketStore{memlock.New().Backend(), func(t driver.Ticket, r driver.Request) driver.Ticket {
			if r.Owner == "late" {
				return answersLate{t, now}
			}
			return t
		}}})
		other := &api{t: t, s: s}
		other.open(time.Minute)
		other.lock("1", "a")
		c.open(time.Minute)
		ended := make(chan struct{})
		go func() {
			c.refused(httpapi.SessionGone, "PUT", "/v1/locks/1", httpapi.Acquire{Name: "a", Owner: "late"})
			close(ended)
		}()
		synctest.Wait()
		c.want(204, "DELETE", "/v1/session", nil, nil)
		close(now)
		<-ended
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:7070/metrics", nil))
		if !strings.Contains(w.Body.String(), "\nhasp_serve_waiting 0\n") || !strings.Contains(w.Body.String(), "\nhasp_serve_locks 1\n") {
			t.Errorf("one lock is held, and none waits:\n%s", w.Body)
		}
	})
}
