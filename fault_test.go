package hasp_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// spoiled is a connection to a real memlock store that can be made to fail, as a network
// would: before the request reaches the store, or after, so that only the answer is lost.
type spoiled struct {
	driver.Backend

	mu    sync.Mutex
	plans map[string]plan // by call: "open", "keepalive", "enqueue", "wait", "leave"
	opts  driver.SessionOptions
	calls []call

	opens, keepAlives, enqueues, waits atomic.Int64
}

// plan is the fault of a call: err without the store, lose the answer, or take time
// before or after it. Hanging ignores the context, which a driver must not do; the core
// has to keep its promises all the same.
type plan struct {
	err           error
	loseAnswer    error
	before, after time.Duration
	hang, late    <-chan struct{} // before the request, before the answer
	times         int             // 0: always
}

func (b *spoiled) plan(call string, p plan) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.plans == nil {
		b.plans = map[string]plan{}
	}
	b.plans[call] = p
}

func (b *spoiled) heal(call string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.plans, call)
}

func (b *spoiled) take(call string) plan {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, ok := b.plans[call]
	if ok && p.times > 0 {
		if p.times--; p.times == 0 {
			delete(b.plans, call)
		} else {
			b.plans[call] = p
		}
	}
	return p
}

// do runs fn as the plan for call says.
func (b *spoiled) do(ctx context.Context, name string, fn func() error) error {
	b.mu.Lock()
	b.calls = append(b.calls, call{name, ctx.Value(noteKey{})})
	b.mu.Unlock()
	p := b.take(name)
	if p.hang != nil {
		<-p.hang
	}
	if err := pause(ctx, p.before); err != nil {
		return err
	}
	if p.err != nil {
		return p.err
	}
	err := fn()
	if p.late != nil {
		<-p.late
	}
	if p.loseAnswer != nil {
		return p.loseAnswer
	}
	if perr := pause(ctx, p.after); perr != nil {
		return perr
	}
	return err
}

// call is one that the driver got, and whose it was, by its context.
type call struct {
	name string
	of   any
}

func (b *spoiled) taken() []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := b.calls
	b.calls = nil
	return calls
}

func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *spoiled) Open(ctx context.Context, o driver.SessionOptions) (s driver.Session, granted time.Duration, err error) {
	b.opens.Add(1)
	b.mu.Lock()
	b.opts = o
	b.mu.Unlock()
	err = b.do(ctx, "open", func() (err error) {
		s, granted, err = b.Backend.Open(ctx, o)
		return err
	})
	if err != nil {
		return nil, 0, err
	}
	return &spoiledSession{s, b}, granted, nil
}

type spoiledSession struct {
	driver.Session
	b *spoiled
}

func (s *spoiledSession) KeepAlive(ctx context.Context) (granted time.Duration, err error) {
	s.b.keepAlives.Add(1)
	err = s.b.do(ctx, "keepalive", func() (err error) {
		granted, err = s.Session.KeepAlive(ctx)
		return err
	})
	return granted, err
}

func (s *spoiledSession) Ticket(r driver.Request) driver.Ticket {
	return &spoiledTicket{s.Session.Ticket(r), s.b}
}

func (s *spoiledSession) Close(ctx context.Context) error {
	return s.b.do(ctx, "close", func() error { return s.Session.Close(ctx) })
}

type spoiledTicket struct {
	driver.Ticket
	b *spoiled
}

func (t *spoiledTicket) Enqueue(ctx context.Context) (v driver.Verdict, err error) {
	t.b.enqueues.Add(1)
	err = t.b.do(ctx, "enqueue", func() (err error) {
		v, err = t.Ticket.Enqueue(ctx)
		return err
	})
	return v, err
}

func (t *spoiledTicket) Wait(ctx context.Context) (v driver.Verdict, err error) {
	t.b.waits.Add(1)
	err = t.b.do(ctx, "wait", func() (err error) {
		v, err = t.Ticket.Wait(ctx)
		return err
	})
	return v, err
}

func (t *spoiledTicket) Leave(ctx context.Context) error {
	return t.b.do(ctx, "leave", func() error { return t.Ticket.Leave(ctx) })
}

func (t *spoiledTicket) Downgrade(ctx context.Context, units int64) error {
	return t.b.do(ctx, "downgrade", func() error { return t.Ticket.(driver.Downgrader).Downgrade(ctx, units) })
}

var errNetwork = errors.New("connection reset")

// T is the TTL of these tests and trust what the core makes of it: T less 1 % less a tenth.
const (
	T     = 10 * time.Second
	trust = T - T/100 - T/10
)

// pair is two clients on one store, the first on a spoiled connection.
func pair(t *testing.T, opts ...hasp.Option) (*spoiled, *hasp.Client, *hasp.Client) {
	t.Helper()
	store := memlock.New()
	b := &spoiled{Backend: store.Backend()}
	return b, client(t, b, opts...), client(t, store.Backend())
}

func client(t *testing.T, b driver.Backend, opts ...hasp.Option) *hasp.Client {
	t.Helper()
	c, err := hasp.New(b, append([]hasp.Option{hasp.WithTTL(T)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func lock(t *testing.T, c *hasp.Client, name string) *hasp.Lease {
	t.Helper()
	l, err := c.Mutex(name).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// lockLater locks in the background and tells the result when there is one.
func lockLater(ctx context.Context, c *hasp.Client, name string) <-chan result {
	ch := make(chan result, 1)
	go func() {
		l, err := c.Mutex(name).Lock(ctx)
		ch <- result{l, err, time.Now()}
	}()
	return ch
}

type result struct {
	lease *hasp.Lease
	err   error
	at    time.Time
}

func wantErr(t *testing.T, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Fatalf("error %q does not wrap %q", err, w)
		}
	}
}

// evict removes who holds a name, as an operator would.
func evict(t *testing.T, b *spoiled, name string) {
	t.Helper()
	list, err := b.Backend.List(t.Context(), name, 0)
	if err == nil && len(list) == 0 {
		err = errors.New("the queue is empty")
	}
	if err == nil {
		err = b.Backend.(driver.Evicter).Evict(t.Context(), name, list[0].ID, "")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// entries counts what the store has under a name.
func entries(t *testing.T, c *hasp.Client, name string) int {
	t.Helper()
	q, err := c.Inspect(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return len(q.Holders) + len(q.Waiters)
}

func (t *spoiledTicket) Publish(ctx context.Context, value []byte) error {
	return t.b.do(ctx, "publish", func() error { return t.Ticket.(driver.Publisher).Publish(ctx, value) })
}

// noContext is the mistake of a caller; written out, it would be the linter's as well.
var noContext context.Context
