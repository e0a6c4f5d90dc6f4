package caslock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Options are settings of a store's driver. The zero value of a field means its default.
type Options struct {
	MinTTL time.Duration // the core refuses a shorter TTL; default 1 s
	MaxTTL time.Duration // Open refuses a longer one; default: none is too long

	// Poll is the pause between two reads of a waiter where the store has no watch. While the
	// holder stays the same it grows to a sixth of the holder's TTL. Default: 1 s.
	Poll time.Duration

	// Resolution is the smallest difference between two stamps that the store keeps, and that
	// others who read its records can see. TTLs are whole multiples of it. Default: none is needed.
	Resolution time.Duration

	// Retention is for how long a free record is kept at least, if the store is a Deleter. Default:
	// a day.
	Retention time.Duration
}

func (o Options) withDefaults() Options {
	if o.MinTTL <= 0 {
		o.MinTTL = time.Second
	}
	if o.Poll <= 0 {
		o.Poll = time.Second
	}
	if o.Retention <= 0 {
		o.Retention = 24 * time.Hour
	}
	return o
}

// New makes a Backend of a store. opts may be nil. The backend closes the store when it is closed.
func New(store Store, opts *Options) driver.Backend {
	var o Options
	if opts != nil {
		o = *opts
	}
	b := &backend{store: store, opts: o.withDefaults(), clock: machine, followers: map[string]*follower{}, released: map[string]time.Time{}}
	b.seen = &observations{minTTL: b.opts.MinTTL, byName: map[string]observation{}}
	b.slots = make(chan struct{}, mostRequests)
	b.done, b.finish = context.WithCancel(context.Background())
	return b
}

// backend is one store.
type backend struct {
	store Store
	opts  Options
	clock clock
	requests
	seen    *observations
	done    context.Context
	finish  context.CancelFunc
	running sync.WaitGroup // goroutines that Close waits for
	closing sync.Mutex     // held while one is begun, or Close begins

	mu        sync.Mutex
	followers map[string]*follower
	released  map[string]time.Time // names that this client has given back in the last moment
}

var errClosed = fmt.Errorf("%w: the backend or session", driver.ErrClosed)

// tries bounds how often a conflict is followed by another attempt within one call.
const tries = 8

func (b *backend) String() string { return b.store.String() }

func (b *backend) Traits() driver.Traits {
	_, push := b.store.(Watcher)
	return driver.Traits{Fencing: true, Values: true, Push: push, Liveness: driver.Leased, MinTTL: b.opts.MinTTL}
}

// Open has nothing to do at the store: each record has its own TTL.
func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	if b.done.Err() != nil {
		return nil, 0, errClosed
	}
	if r := b.opts.Resolution; r > 0 && o.TTL%r != 0 {
		return nil, 0, fmt.Errorf("%w: %s keeps TTLs in steps of %s, not %s", driver.ErrInvalid, b, r, o.TTL)
	}
	if most := b.opts.MaxTTL; most > 0 && o.TTL > most {
		return nil, 0, fmt.Errorf("%w: %s keeps TTLs up to %s, not %s", driver.ErrInvalid, b, most, o.TTL)
	}
	b.opened(o.TTL)
	s := &session{backend: b, opts: o, tickets: map[string]*ticket{}, leaving: map[*ticket]bool{}}
	s.done, s.finish = context.WithCancel(b.done)
	return s, o.TTL, nil
}

// load reads a record, and notes what it has seen. Those who follow the name are not told of a
// record that was overtaken: a watch that has told of a later one may be silent from then on.
func (b *backend) load(ctx context.Context, name string) (Record, Version, observation, error) {
	b.mu.Lock()
	f := b.followers[name]
	b.mu.Unlock()
	var before <-chan struct{}
	if f != nil {
		_, before = f.look()
	}
	type loaded struct {
		Record
		Version
	}
	l, err := call(ctx, b, func(ctx context.Context) (loaded, error) {
		r, v, err := b.store.Load(ctx, name)
		return loaded{r, v}, err
	})
	if err != nil {
		return Record{}, Absent, observation{}, err
	}
	r, v := l.Record, l.Version
	if r.Name == "" { // there is none
		r.Name = name
	}
	if r.Name != name {
		return Record{}, Absent, observation{}, fmt.Errorf("%w: %q is stored where %q belongs", driver.ErrMismatch, r.Name, name)
	}
	if f != nil {
		f.update(r, before)
	}
	return r, v, b.seen.saw(r), nil
}

// token is that of a grant which replaces the record.
//
// Where versions only grow it is the version that the granting write replaces: it is known before
// the write and stands in the record, so that a list, a lost answer and an adoption agree, and it
// needs no memory over a deletion by hand. Elsewhere it is a counter in the record, or the clock if
// that is ahead, so that a deletion does not take it back. The counter also is a bound for
// versions, which a restored backup takes back.
func (b *backend) token(r Record, v Version) (uint64, error) {
	if q, ok := b.store.(Sequencer); ok {
		n, err := q.Number(v)
		return max(n, r.Token+1), err
	}
	return max(r.Token+1, uint64(b.clock.wall().UnixMicro())), nil
}

// List has one entry or none: there is no queue. A record that looks over is shown as one that does,
// until this process has seen it unchanged for its TTL.
func (b *backend) List(ctx context.Context, name string, _ int) ([]driver.Entry, error) {
	r, _, seen, err := b.load(ctx, name)
	if err != nil || (view{true, r, seen}).open() {
		return nil, err
	}
	return []driver.Entry{b.entry(r, seen)}, nil
}

func (b *backend) entry(r Record, seen observation) driver.Entry {
	if r.Foreign {
		r.Token, r.Value = 0, nil
	}
	e := driver.Entry{
		Request: driver.Request{Name: r.Name, ID: r.ID, Units: driver.Whole, Capacity: driver.Whole, Owner: r.Owner, Since: r.Since, Value: r.Value},
		Seq:     r.Token, LooksOver: b.looksOverSince(r, seen),
	}
	if e.LooksOver.IsZero() {
		e.Left = max(r.Renewed.Add(r.TTL).Sub(b.clock.wall()), 0)
	}
	return e
}

// looksOverSince is since when the record looks over: by its stamp, and if that is in the future,
// since this process has seen it.
func (b *backend) looksOverSince(r Record, seen observation) time.Time {
	switch since := r.Renewed.Add(r.TTL); {
	case !b.looksOver(r):
		return time.Time{}
	case since.Before(b.clock.wall()):
		return since
	}
	return seen.first.Round(0)
}

// Names lists those that are held, and those that look over until this process has seen that they
// are.
func (b *backend) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	var unread []string
	stopped := false
	err := b.list(ctx, prefix, func(r Record, v Version) bool {
		driver.Progress(ctx)
		switch {
		case !strings.HasPrefix(r.Name, prefix):
		case v == Absent: // the list has names only
			unread = append(unread, r.Name)
		case r.ID != "" && !(view{true, r, b.seen.saw(r)}).over():
			stopped = !yield(r.Name)
		}
		return !stopped
	})
	if err != nil || stopped {
		return err
	}
	return b.heldOf(ctx, unread, yield)
}

// heldOf yields those of the names that are held. What cannot be read hides no others.
func (b *backend) heldOf(ctx context.Context, names []string, yield func(string) bool) error {
	held := make([]bool, len(names))
	failed := make([]error, len(names))
	atOnce(len(names), namesAtOnce, func(i int) {
		r, _, seen, err := b.load(ctx, names[i])
		if err == nil {
			driver.Progress(ctx)
			held[i] = !(view{true, r, seen}).open()
		}
		if !errors.Is(err, driver.ErrMismatch) { // that is another program's
			failed[i] = err
		}
	})
	for i, name := range names {
		if held[i] && !yield(name) {
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(failed...)
}

// namesAtOnce bounds the reads that one call of Names has under way.
const namesAtOnce = 64

// Watch tells of another holder, another value, and an end that was observed; not of renewals.
func (b *backend) Watch(ctx context.Context, name string, changed func()) error {
	f, leave := b.follow(name)
	defer leave()
	type shown struct {
		id, value string
		token     uint64
		over      bool
	}
	var last *shown
	for {
		v, news := f.look()
		if v.loaded {
			now := shown{v.record.ID, string(v.record.Value), v.record.Token, v.over()}
			if last == nil || *last != now {
				last = &now
				changed()
			}
		}
		if err := b.await(ctx, news); err != nil {
			return err
		}
	}
}

// Evict frees the record if this entry holds it, also one of another program. Its holder is told at
// its next renewal. The note stays until the next eviction.
func (b *backend) Evict(ctx context.Context, name, id, note string) error {
	for range tries {
		r, v, _, err := b.load(ctx, name)
		if err != nil {
			return err
		}
		if r.ID == "" || r.ID != id {
			return driver.ErrGone
		}
		free := b.stamp(r.freed(), time.Time{})
		if note != "" {
			free.Note = note
		}
		if _, err = b.swap(ctx, free, v); !errors.Is(err, ErrConflict) {
			return err // after a lost answer the operator looks, and asks again
		}
	}
	return errBusy(name)
}

// LastEviction returns the note of the last eviction.
func (b *backend) LastEviction(ctx context.Context, name string) (string, error) {
	r, _, _, err := b.load(ctx, name)
	return r.Note, err
}

// Diagnose says how the locks are kept, and what the store finds when it examines itself.
func (b *backend) Diagnose(ctx context.Context) ([]driver.Finding, error) {
	tokens := "counters in the records"
	if _, numbers := b.store.(Sequencer); numbers {
		tokens = "the store's own versions"
	}
	found := []driver.Finding{{Level: driver.Info, Subject: "locks", Text: "one record a lock, replaced if it has not changed; tokens are " + tokens}}
	d, ok := b.store.(interface {
		Diagnose(ctx context.Context) ([]driver.Finding, error)
	})
	if !ok {
		return found, nil
	}
	more, err := apart(ctx, func() ([]driver.Finding, error) { return d.Diagnose(ctx) })
	return append(found, more...), err
}

// Warnings are those of a store that has some.
func (b *backend) Warnings(ctx context.Context) ([]driver.Finding, error) {
	w, ok := b.store.(interface {
		Warnings(ctx context.Context) ([]driver.Finding, error)
	})
	if !ok {
		return nil, nil
	}
	return apart(ctx, func() ([]driver.Finding, error) { return w.Warnings(ctx) })
}

// inBackground runs f, for which Close waits. A WaitGroup that is waited for takes no more.
func (b *backend) inBackground(f func()) {
	b.closing.Lock()
	defer b.closing.Unlock()
	if b.done.Err() == nil {
		b.running.Go(f)
	}
}

// Close ends what is running, and the store.
func (b *backend) Close() error {
	b.closing.Lock()
	b.finish()
	b.closing.Unlock()
	b.running.Wait()
	return b.store.Close()
}

func errBusy(name string) error {
	return fmt.Errorf("the record of %q is written by others all the time", name)
}

// jittered spreads what would otherwise happen at the same time in many processes.
func jittered(d time.Duration) time.Duration { return d - d/8 + rand.N(d/4+1) }
