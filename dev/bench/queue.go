package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// manyWaiters has more and more goroutines of one client wait for one name, and looks at what
// a hand-over costs in front of them; and at the end, at what each of them costs while nothing
// happens. One of them stands in the store's queue, the others queue up in the client.
func manyWaiters(ctx context.Context, m *match) figures {
	return growQueue(ctx, m, func(ctx context.Context, entered func()) (client, error) {
		c, err := m.who.open(ctx)
		lock := c.lock
		c.lock = func(ctx context.Context, name string) (func() error, error) {
			entered() // is about to
			return lock(ctx, name)
		}
		return c, err
	})
}

// manyEntries has them all in the store's queue: a client would not let them, and ten thousand
// clients do not fit into this machine, so that they are entries of one session of the driver.
func manyEntries(ctx context.Context, m *match) figures { return growQueue(ctx, m, m.who.session) }

func growQueue(ctx context.Context, m *match, open func(ctx context.Context, entered func()) (client, error)) figures {
	if m.who.role != ours {
		return figures{}
	}
	fig, err := (&queue{name: m.name("queue", 0), grants: make(chan grant)}).run(ctx, m, open)
	if err != nil {
		return figures{Error: err.Error()}
	}
	return fig
}

// patient is how long is waited for what must come.
const patient = 30 * time.Second

// queue is one name with many who wait for it.
type queue struct {
	client  client
	name    string
	grants  chan grant
	n       int          // how many are to wait
	joined  atomic.Int64 // how often somebody has got into the queue
	passed  int64        // how often somebody has got out of it
	waiting sync.WaitGroup
}

// grant is a lock that somebody has got who waited for it.
type grant struct {
	unlock func() error
	at     time.Time
	err    error
}

func (q *queue) run(ctx context.Context, m *match, open func(ctx context.Context, entered func()) (client, error)) (fig figures, err error) {
	ctx, cancel := context.WithCancel(ctx)
	q.client, err = open(ctx, func() { q.joined.Add(1) })
	if err != nil {
		cancel()
		return fig, err
	}
	defer q.waiting.Wait()
	defer cancel()
	defer q.client.close() // takes all out of the queue at once
	held, err := q.client.lock(ctx, q.name)
	if err != nil {
		return fig, err
	}
	q.passed = q.joined.Load()
	heap, goroutines := inUse(), runtime.NumGoroutine()
	err = fig.climb(m.grows(6*time.Second), []int{1, 10, 100, 1000, 10_000}, func(n, upTo int) (int, error) {
		more := min(upTo-n, max(50, n/4))
		return more, q.grow(ctx, more)
	}, func() (look figures) {
		look, held = q.look(ctx, m, held)
		return look
	})
	if err == nil {
		err = q.idle(m, &fig, heap, goroutines)
	}
	return fig, err
}

// look hands over for half a second, or two hundred times.
func (q *queue) look(ctx context.Context, m *match, held func() error) (fig figures, last func() error) {
	var gaps []time.Duration
	fig = m.measure(func() (int, error) {
		until := time.Now().Add(m.lasts(500 * time.Millisecond))
		for len(gaps) == 0 || len(gaps) < 200 && time.Now().Before(until) {
			gap, next, err := q.pass(ctx, held)
			if err != nil {
				return 0, err
			}
			gaps, held = append(gaps, gap), next
		}
		return len(gaps), nil
	})
	fig.timings(gaps)
	return fig, held
}

// idle has all wait for nothing.
func (q *queue) idle(m *match, fig *figures, heap int64, goroutines int) error {
	span := m.lasts(2 * time.Second)
	look := m.measure(func() (int, error) {
		time.Sleep(span)
		return 1, nil
	})
	if look.Error != "" {
		return errors.New(look.Error)
	}
	fig.PerSecond, fig.CPU30 = look.Commands/span.Seconds(), look.CPU/1e6/span.Seconds()*30
	fig.Heap = float64(inUse()-heap) / float64(q.n)
	fig.Goroutines = float64(runtime.NumGoroutine()-goroutines) / float64(q.n)
	return nil
}

// grow has more wait.
func (q *queue) grow(ctx context.Context, more int) error {
	for range more {
		q.waiting.Go(func() { q.wait(ctx) })
	}
	q.n += more
	return q.complete(ctx)
}

// complete returns when all stand in the queue who are to.
func (q *queue) complete(ctx context.Context) error {
	for end := time.Now().Add(patient); q.joined.Load()-q.passed < int64(q.n); time.Sleep(50 * time.Microsecond) {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(end):
			return fmt.Errorf("%d of %d get into the queue within %s", q.joined.Load()-q.passed, q.n, patient)
		}
	}
	return nil
}

// wait gets the lock, hands it to the measurement, and queues again.
func (q *queue) wait(ctx context.Context) {
	for ctx.Err() == nil {
		unlock, err := q.client.lock(ctx, q.name)
		select {
		case q.grants <- grant{unlock, time.Now(), err}:
		case <-ctx.Done():
		}
		if err != nil {
			return
		}
	}
}

// pass gives the lock to the next. What is timed is from the beginning of the release to the
// next one's having it; whose turn it was stands in the queue again when it returns.
func (q *queue) pass(ctx context.Context, unlock func() error) (time.Duration, func() error, error) {
	began := time.Now()
	if err := unlock(); err != nil {
		return 0, nil, err
	}
	var next grant
	select {
	case next = <-q.grants:
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	case <-time.After(patient):
		return 0, nil, fmt.Errorf("none of %d was served within %s", q.n, patient)
	}
	if next.err != nil {
		return 0, nil, next.err
	}
	q.passed++
	return next.at.Sub(began), next.unlock, q.complete(ctx)
}

// session is a client whose locks are entries of one session of the driver: as the core has
// them, but for what it does in the client. entered is called by the goroutine that stands in the queue,
// or has the lock at once.
func (c contestant) session(ctx context.Context, entered func()) (client, error) {
	u, err := url.Parse(c.url)
	if err != nil {
		return client{}, err
	}
	b, err := driver.Lookup(u.Scheme)(ctx, u)
	if err != nil {
		return client{}, err
	}
	s, _, err := b.Open(ctx, driver.SessionOptions{TTL: ttl, Gone: func(string, error) {}})
	if err != nil {
		return client{}, errors.Join(err, b.Close())
	}
	renewing, stop := context.WithCancel(ctx)
	go func() {
		for every := time.NewTicker(ttl / 3); renewing.Err() == nil; {
			select {
			case <-every.C:
				_, _ = s.KeepAlive(renewing) // what is lost says so itself
			case <-renewing.Done():
			}
		}
	}()
	var ids atomic.Int64
	return client{
		lock: func(ctx context.Context, name string) (func() error, error) {
			t := s.Ticket(driver.Request{
				Name: name, ID: fmt.Sprintf("bench-%d-%d", now(), ids.Add(1)), Units: driver.Whole, Capacity: driver.Whole,
				Owner: `{"program":"bench"}`, Since: time.Now(),
			})
			v, err := t.Enqueue(ctx)
			entered()
			for err == nil && !v.Held {
				v, err = await(ctx, t, v.Retry)
			}
			return func() error { return t.Leave(context.WithoutCancel(ctx)) }, err
		},
		close: func() {
			stop()
			_ = s.Close(context.Background())
			_ = b.Close()
		},
	}, nil
}

// await waits until the verdict may have changed, and asks where the store wants to be asked.
func await(ctx context.Context, t driver.Ticket, retry time.Duration) (driver.Verdict, error) {
	if retry == 0 {
		return t.Wait(ctx)
	}
	short, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	v, err := t.Wait(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return t.Enqueue(ctx)
	}
	return v, err
}
