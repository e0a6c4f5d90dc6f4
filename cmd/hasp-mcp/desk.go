package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
)

// desk has the places that agents have asked for: at most one for each name and holder.
type desk struct {
	client  *hasp.Client
	maxHold time.Duration

	mu     sync.Mutex
	places map[key]*place
}

type key struct{ name, holder string }

// place is one request for a lock: waiting until done is closed, and then a lease or an error.
type place struct {
	key
	asked  time.Time
	note   string
	cancel context.CancelFunc
	waits  atomic.Bool // the store has it in its queue
	first  atomic.Int64

	done  chan struct{}
	lease *hasp.Lease
	err   error
}

type placeKey struct{}

func newDesk(maxHold time.Duration) *desk {
	return &desk{maxHold: maxHold, places: map[key]*place{}}
}

// Observe notes the place of a request that begins to wait.
func (d *desk) Observe(e hasp.Event) {
	if e.Kind != hasp.EventWaiting || e.Context == nil {
		return
	}
	if p, ok := e.Context.Value(placeKey{}).(*place); ok {
		p.first.Store(int64(e.Place))
		p.waits.Store(true)
	}
}

// ask returns the place of a holder, and makes it if there is none, or if the last one came to
// nothing.
func (d *desk) ask(k key, note string) *place {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.places[k]; p != nil {
		return p
	}
	p := &place{key: k, asked: time.Now(), note: note, done: make(chan struct{})}
	// Of no call: the place outlives the call that asked for it.
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.WithValue(context.Background(), placeKey{}, p))
	opts := []hasp.LockOption{hasp.Note(p.title())}
	if d.maxHold > 0 {
		opts = append(opts, hasp.MaxHold(d.maxHold))
	}
	d.places[k] = p
	go func() {
		defer close(p.done)
		p.lease, p.err = d.client.Mutex(k.name, opts...).Lock(ctx)
	}()
	return p
}

// title tells others what it is for.
func (p *place) title() string {
	if p.note == "" {
		return p.holder
	}
	return p.holder + ": " + p.note
}

func (d *desk) find(k key) *place {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.places[k]
}

// forget removes a place that is over, unless another one has been made since.
func (d *desk) forget(p *place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.places[p.key] == p {
		delete(d.places, p.key)
	}
	p.cancel()
}

// await waits for the lock, at most for so long. It returns nil when the lock is held, errWaiting
// while the place goes on, and why there is no place any more.
func (d *desk) await(ctx context.Context, p *place, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-p.done:
	default:
		select {
		case <-p.done:
		case <-timer.C:
			return errWaiting
		case <-ctx.Done(): // the call was given up, the place was not
			return errWaiting
		}
	}
	err := p.err
	if err == nil && !p.lease.Held() {
		err = fmt.Errorf("%w; others may have worked since: look at what you did under it, and acquire it again", p.lease.Err())
	}
	if err != nil {
		d.forget(p)
	}
	return err
}

var errWaiting = errors.New("waiting")

// leave gives up a place, or a lock.
func (d *desk) leave(ctx context.Context, p *place) error {
	p.cancel()
	<-p.done // soon, since its context has ended
	d.forget(p)
	if p.lease == nil {
		return nil // it only waited; hasp removes it from the queue
	}
	return p.lease.Release(ctx)
}

// queue reads who has a lock, and who waits. place is that of p among the waiters, 0 if it is not
// known.
func (d *desk) queue(ctx context.Context, name string, p *place) (q hasp.Queue, place int, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	q, err = d.client.Inspect(ctx, name)
	if p == nil {
		return q, 0, err
	}
	host, _ := os.Hostname() // "" finds none, and the place is that of the beginning
	for i, e := range q.Waiters {
		if e.Owner.PID == os.Getpid() && e.Owner.Host == host && e.Owner.Note == p.title() {
			return q, i + 1, err
		}
	}
	return q, int(p.first.Load()), err
}

// lookBound is for reads that explain an answer: they must not hold it up.
const lookBound = 5 * time.Second
