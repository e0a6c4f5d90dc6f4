package redislock_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/internal/witness"
)

// The controls: drivers that are broken in one way each, under the faults of fault_test.go.
// Each test here shows that the fault comes about, and that what the fault test looks at
// then tells the broken driver from the whole one. TestStormControl is that of TestStorm,
// and the tests of failovers are each other's.

// flawed opens a client whose driver is broken.
func flawed(t *testing.T, storeURL string, wrap func(driver.Backend) driver.Backend, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	return testkit.ClientOn(t, wrap(testkit.Open(t, storeURL)), opts...)
}

// Of TestKeyRemoved, TestServerRestarts and TestPartition: who does not ask the store is
// not told, and believes in his lock beside the next one.
func TestControlLoss(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c, other := flawed(t, server.URL(), witness.Liar, hasp.WithTTL(calm)), client(t, server.URL())
	l := testkit.Lock(t, c, "orders")
	do(t, server, "DEL", "hasp:{orders}")
	next := testkit.Lock(t, other, "orders")
	time.Sleep(calm * 2 / 3) // two renewals
	if !l.Held() || !next.Held() {
		t.Error("a driver that renews nothing has noticed the loss: by what?")
	}
}

// Of TestClientKill, TestWaiterOutlivesFlush and TestServerRestarts: a waiter that neither
// renews nor looks after its subscription broke hears nothing of a grant whose message was
// lost, and nothing of its entry's end.
func TestControlDeaf(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	c := client(t, server.URL())
	other := flawed(t, server.URL(), func(b driver.Backend) driver.Backend { return deaf{Backend: witness.Liar(b)} }, hasp.WithTTL(calm))
	l := testkit.Lock(t, c, "a")
	got := testkit.Queued(t, other, "a")
	do(t, server, "CLIENT", "KILL", "TYPE", "pubsub")
	if err := l.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(calm / 3)
	if len(got) > 0 {
		t.Error("a waiter that hears nothing was granted: the message was not lost")
	}
	if q := testkit.Entries(t, c, "a"); len(q) != 1 {
		t.Errorf("the store has %v", q)
	}
}

// Of TestAnswersLost: a driver that asks again under another ID leaves an entry behind, and
// waits for itself.
func TestControlAnswersLost(t *testing.T) {
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	net := testkit.Proxy(t, server.Addr)
	c := flawed(t, "redis://"+net.Addr(), func(b driver.Backend) driver.Backend { return renaming{b} }, hasp.WithTTL(calm))
	other := client(t, server.URL())
	testkit.Lock(t, c, "warm")
	cut := net.Lose(faultnet.Down, 1, faultnet.Contains("hasp:{a}"))
	ctx, cancel := context.WithTimeout(t.Context(), slack)
	defer cancel()
	go func() { _, _ = c.Mutex("a").Lock(ctx) }()
	<-cut
	for len(testkit.Entries(t, other, "a")) != 2 {
		if ctx.Err() != nil {
			t.Fatalf("one lock was asked for under two IDs, and the store has %v", testkit.Entries(t, other, "a"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Of TestNoOrphans: a driver that does not clean up has its entry there when the TTL is over.
func TestControlOrphans(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	server := backends.StartRedis(t, backends.RedisOptions{})
	held := testkit.Lock(t, client(t, server.URL()), "a")
	c := flawed(t, server.URL(), func(b driver.Backend) driver.Backend { return careless{b} }, hasp.WithTTL(calm))
	other := client(t, server.URL())
	ctx, cancel := context.WithTimeout(t.Context(), T)
	defer cancel()
	if _, err := c.Mutex("a").Lock(ctx); err == nil {
		t.Fatal("granted beside the holder")
	}
	time.Sleep(calm)
	if q := testkit.Entries(t, other, "a"); len(q) != 2 || q[0].ID != held.ID() {
		t.Errorf("nobody has cleaned up, and the store has %v", q)
	}
}

// deaf never has a waiter ask again, and tells it nothing, or what it hears from others. The
// liar below it renews nothing.
type deaf struct {
	driver.Backend
	hears bool
}

func (d deaf) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := d.Backend.Open(ctx, o)
	return deafSession{s, d.hears}, granted, err
}

type deafSession struct {
	driver.Session
	hears bool
}

func (s deafSession) Ticket(r driver.Request) driver.Ticket {
	return deafTicket{s.Session.Ticket(r), s.hears}
}

type deafTicket struct {
	driver.Ticket
	hears bool
}

func (t deafTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.Ticket.Enqueue(ctx)
	v.Retry = 0
	return v, err
}

func (t deafTicket) Wait(ctx context.Context) (driver.Verdict, error) {
	if t.hears {
		v, err := t.Ticket.Wait(ctx)
		v.Retry = 0
		return v, err
	}
	<-ctx.Done()
	return driver.Verdict{}, ctx.Err()
}

// renaming asks again under a new ID.
type renaming struct{ driver.Backend }

func (b renaming) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return renamingSession{s}, granted, err
}

type renamingSession struct{ driver.Session }

func (s renamingSession) Ticket(r driver.Request) driver.Ticket {
	return &renamingTicket{Ticket: s.Session.Ticket(r), session: s.Session, request: r}
}

type renamingTicket struct {
	driver.Ticket
	session driver.Session
	request driver.Request
	once    sync.Once
}

func (t *renamingTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.Ticket.Enqueue(ctx)
	if err != nil {
		t.once.Do(func() {
			t.request.ID += "-again"
			t.Ticket = t.session.Ticket(t.request)
		})
	}
	return v, err
}

// careless leaves nothing, and says that it has.
type careless struct{ driver.Backend }

func (b careless) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := b.Backend.Open(ctx, o)
	return carelessSession{s}, granted, err
}

type carelessSession struct{ driver.Session }

func (s carelessSession) Ticket(r driver.Request) driver.Ticket {
	return carelessTicket{s.Session.Ticket(r)}
}

type carelessTicket struct{ driver.Ticket }

func (carelessTicket) Leave(context.Context) error { return nil }
