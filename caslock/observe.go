package caslock

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// identity tells whether two reads have seen the same record. Not the version: a program that
// rewrites labels or metadata would keep the lock of a dead holder for ever.
type identity struct {
	id, nonce string
	renewed   int64
}

func (r Record) identity() identity { return identity{r.ID, r.Nonce, r.Renewed.UnixNano()} }

// observation is a record that was seen, and since when it has been the same.
type observation struct {
	identity
	ttl   time.Duration
	first time.Time // when the first read of it had returned, with the monotonic clock
	since time.Time // when the first read of its holder had, which may have renewed it meanwhile
}

// end is when the record is over if it stays as it is. The holder has counted its TTL from before
// it sent what we have read, so from before first, on a clock that is at most 1 % slower than ours.
func (o observation) end() time.Time { return o.first.Add(o.ttl).Add(o.ttl / 100) }

// observations are the records of a backend's names that have a holder, as they were seen last. No
// clock of another machine is in them.
type observations struct {
	minTTL time.Duration

	mu     sync.Mutex
	byName map[string]observation
}

// mostObserved bounds the memory for names that are not asked for any more. What is thrown away is
// observed anew.
const mostObserved = 10_000

// saw notes a record that a read has returned just now, and returns since when it has been seen. An
// older record, of a read that was overtaken, begins an observation that ends nothing: the swap
// that it may lead to is on the version of that read, and conflicts.
func (o *observations) saw(r Record) observation {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if r.ID == "" {
		delete(o.byName, r.Name)
		return observation{}
	}
	seen, known := o.byName[r.Name]
	if known && seen.identity == r.identity() {
		return seen
	}
	if !known && len(o.byName) >= mostObserved {
		clear(o.byName)
	}
	since := now
	if known && seen.id == r.ID {
		since = seen.since
	}
	seen = observation{r.identity(), max(r.TTL, o.minTTL), now, since}
	o.byName[r.Name] = seen
	return seen
}

// follower has one name read, or watched, for all of a backend that wait for it or follow it.
type follower struct {
	backend *backend
	name    string
	users   int // guarded by backend.mu
	stop    context.CancelFunc

	mu     sync.Mutex
	loaded bool
	record Record
	seen   observation
	news   chan struct{} // closed at the next change
	expiry *time.Timer   // tells that the record is over: that is no event in such a store
}

// view has what a follower has seen.
type view struct {
	loaded bool
	record Record
	seen   observation
}

// over reports whether the record has a holder whose time is over.
func (v view) over() bool { return v.record.ID != "" && !time.Now().Before(v.seen.end()) }

// open reports whether somebody may take the lock.
func (v view) open() bool { return v.loaded && (v.record.ID == "" || v.over()) }

// follow returns the follower of the name, and begins it if there is none; leave ends it if it was
// the last user.
func (b *backend) follow(name string) (f *follower, leave func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f = b.followers[name]
	if f == nil {
		ctx, stop := context.WithCancel(b.done)
		f = &follower{backend: b, name: name, stop: stop, news: make(chan struct{})}
		f.expiry = time.AfterFunc(time.Hour, f.wake)
		b.followers[name] = f
		b.inBackground(func() { f.run(ctx) })
	}
	f.users++
	return f, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if f.users--; f.users == 0 {
			delete(b.followers, name)
			f.stop()
			f.expiry.Stop()
		}
	}
}

// run reads the name until its last user has left.
func (f *follower) run(ctx context.Context) {
	watcher, _ := f.backend.store.(Watcher)
	for ctx.Err() == nil {
		if watcher != nil {
			f.backend.watch(ctx, watcher, f.name, func(r Record) {
				if r.Name == "" {
					r.Name = f.name
				}
				f.update(r, nil)
			})
			sleep(ctx, jittered(rewatch))
			continue
		}
		f.backend.load(ctx, f.name) // it updates f; an error is told to those who ask for the lock themselves
		sleep(ctx, f.pause())
	}
}

// pause is that before the next read. While the holder stays the same it grows to a sixth of the
// holder's TTL: who has held for long is likely to go on, and each read may be paid for. A holder
// that renews each third of its TTL is still seen alive twice before its time would be over.
func (f *follower) pause() time.Duration {
	v, _ := f.look()
	d := f.backend.opts.Poll
	if v.record.ID != "" {
		d = max(d, min(time.Since(v.seen.since)/4, v.seen.ttl/6))
	}
	return d + rand.N(d/4+1)
}

// rewatch is the pause after a watch that broke.
const rewatch = 100 * time.Millisecond

// update tells those who follow, if the record is another one. before is the answer of look before
// the record was read; nil for a watch, which tells of the records in their order.
func (f *follower) update(r Record, before <-chan struct{}) {
	seen := f.backend.seen.saw(r)
	f.mu.Lock()
	if before != nil && before != f.news {
		f.mu.Unlock()
		return
	}
	same := f.loaded && f.record.identity() == r.identity()
	f.loaded, f.record, f.seen = true, r, seen
	if r.ID != "" {
		f.expiry.Reset(time.Until(seen.end()))
	}
	f.mu.Unlock()
	if !same {
		f.wake()
	}
}

// wake wakes all who follow.
func (f *follower) wake() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.news)
	f.news = make(chan struct{})
}

// look returns what was seen last, and a channel that is closed at the next change.
func (f *follower) look() (view, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return view{f.loaded, f.record, f.seen}, f.news
}

// observe waits until the record that was read is over, or another one.
func (b *backend) observe(ctx context.Context, r Record) error {
	f, leave := b.follow(r.Name)
	defer leave()
	for {
		v, news := f.look()
		if v.loaded && (v.record.identity() != r.identity() || v.over()) {
			return nil
		}
		if err := b.await(ctx, news); err != nil {
			return err
		}
	}
}

// await waits for the next change that a follower sees.
func (b *backend) await(ctx context.Context, news <-chan struct{}) error {
	select {
	case <-news:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.done.Done():
		return errClosed
	}
}

// turn is for how long a client that has given a lock back leaves it to others, where they are told of
// it by a watch: the one that locks again at once would be quicker than all of them, for ever.
const turn = 50 * time.Millisecond

// gaveBack notes that this client has given the lock back.
func (b *backend) gaveBack(name string) {
	if _, push := b.store.(Watcher); !push {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.released) >= mostObserved {
		clear(b.released) // the others are quicker for once
	}
	b.released[name] = time.Now()
}

// giveWay waits until others had their turn.
func (b *backend) giveWay(ctx context.Context, name string) {
	b.mu.Lock()
	at, mine := b.released[name]
	delete(b.released, name)
	b.mu.Unlock()
	if left := turn - time.Since(at); mine && left > 0 {
		sleep(ctx, left)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
