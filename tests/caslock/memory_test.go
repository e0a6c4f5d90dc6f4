package caslock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/caslock"
)

// contents are a store in this process: what the scheme is tried on.
type contents struct {
	mu       sync.Mutex
	revision uint64
	records  map[string]stored
}

type stored struct {
	record   caslock.Record
	revision uint64
}

func newContents() *contents {
	return &contents{records: map[string]stored{}}
}

// hashed is a connection to a store whose versions are hashes of the content, as an ETag is, and
// which lists names only.
type hashed struct {
	*contents
	*line
}

// numbered is one to a store whose versions are numbers that grow, and which tells of changes.
type numbered struct{ hashed }

func (h hashed) String() string { return "memory" }
func (h hashed) Close() error   { return nil }

func etag(s stored) caslock.Version {
	return caslock.Version(fmt.Sprintf("%x", s.record.Encode()))
}

func revision(s stored) caslock.Version {
	return caslock.Version(strconv.FormatUint(s.revision, 10))
}

func (h hashed) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	return h.load(ctx, name, etag)
}

func (n numbered) Load(ctx context.Context, name string) (caslock.Record, caslock.Version, error) {
	return n.load(ctx, name, revision)
}

func (h hashed) load(ctx context.Context, name string, version func(stored) caslock.Version) (r caslock.Record, v caslock.Version, err error) {
	var s stored
	var found bool
	err = h.call(ctx, func() {
		h.contents.mu.Lock()
		defer h.contents.mu.Unlock()
		s, found = h.records[name]
	})
	if err != nil || !found {
		return r, caslock.Absent, err
	}
	return s.record, version(s), nil
}

func (h hashed) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	return h.swap(ctx, r, old, etag)
}

func (n numbered) Swap(ctx context.Context, r caslock.Record, old caslock.Version) (caslock.Version, error) {
	return n.swap(ctx, r, old, revision)
}

func (h hashed) swap(ctx context.Context, r caslock.Record, old caslock.Version, version func(stored) caslock.Version) (caslock.Version, error) {
	r, err := caslock.Decode(r.Encode())
	if err != nil {
		return caslock.Absent, err
	}
	if err := h.allowed(ctx, r.Name); err != nil {
		return caslock.Absent, err
	}
	now, conflict := caslock.Absent, false
	err = h.call(ctx, func() {
		h.contents.mu.Lock()
		defer h.contents.mu.Unlock()
		s, found := h.records[r.Name]
		if conflict = found && version(s) != old || !found && old != caslock.Absent; !conflict {
			now = version(h.putLocked(r))
		}
	})
	if err != nil { // it may still be done: what it says is not for us any more
		return caslock.Absent, err
	}
	if conflict {
		return caslock.Absent, caslock.ErrConflict
	}
	return now, nil
}

func (c *contents) putLocked(r caslock.Record) stored {
	c.revision++
	s := stored{r, c.revision}
	c.records[r.Name] = s
	return s
}

func (h hashed) List(ctx context.Context, prefix string, yield func(caslock.Record, caslock.Version) bool) error {
	return h.list(ctx, prefix, func(s stored) bool { return yield(caslock.Record{Name: s.record.Name}, caslock.Absent) })
}

func (n numbered) List(ctx context.Context, prefix string, yield func(caslock.Record, caslock.Version) bool) error {
	return n.list(ctx, prefix, func(s stored) bool { return yield(s.record, revision(s)) })
}

func (h hashed) list(ctx context.Context, prefix string, yield func(stored) bool) error {
	var all []stored
	err := h.call(ctx, func() {
		h.contents.mu.Lock()
		defer h.contents.mu.Unlock()
		for name, s := range h.records {
			if strings.HasPrefix(name, prefix) {
				all = append(all, s)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, s := range all {
		if !yield(s) {
			break
		}
	}
	return nil
}

func (n numbered) Number(v caslock.Version) (uint64, error) {
	return strconv.ParseUint(string(v), 10, 64)
}

func (n numbered) Watch(ctx context.Context, name string, changed func(caslock.Record, caslock.Version)) error {
	var last caslock.Version = "none"
	for {
		r, v, err := n.Load(ctx, name)
		if err != nil {
			return err
		}
		if v != last {
			last = v
			changed(r, v)
		}
		if n.line != nil {
			n.sent.Add(-1) // no request: it stands for what a store tells
		}
		// Looked at and not told: a channel belongs to the fake time in which it was made, and
		// tests share names.
		select {
		case <-time.After(push):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// push is how long a change takes to its watches.
const push = 10 * time.Millisecond

// line is the network between a client and the store.
type line struct {
	mu     sync.Mutex
	slow   time.Duration
	gate   chan struct{}                                // closed when a partition ends; nil: there is none
	broken chan struct{}                                // closed when the connections break
	closed bool                                         // later requests fail
	under  sync.WaitGroup                               // requests under way
	sent   atomic.Int64                                 // requests so far
	allow  func(ctx context.Context, name string) error // before each write; nil: all are allowed
}

var errBroken = errors.New("the connection is broken")

// call has the store do something. What was sent is done also if the caller has gone meanwhile,
// late perhaps. A watch that caslock no longer waits for may call once more after Close.
func (l *line) call(ctx context.Context, do func()) error {
	if err := ctx.Err(); err != nil || l == nil {
		if err == nil {
			do()
		}
		return err
	}
	answer := make(chan error, 1)
	if !l.begin(do, answer) {
		return errBroken
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// begin sends a request, unless the connection is closed.
func (l *line) begin(do func(), answer chan<- error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	if l.broken == nil {
		l.broken = make(chan struct{})
	}
	broken := l.broken
	l.sent.Add(1)
	l.under.Go(func() {
		err := l.travel(broken)
		if err == nil {
			do()
			err = l.travel(broken)
		}
		answer <- err
	})
	return true
}

// allowed is before a write. One that is not is counted, too.
func (l *line) allowed(ctx context.Context, name string) error {
	if l == nil || l.allow == nil {
		return nil
	}
	err := l.allow(ctx, name)
	if err != nil {
		l.sent.Add(1)
	}
	return err
}

// travel is one way. What is under way when the connections break is lost.
func (l *line) travel(broken chan struct{}) error {
	l.mu.Lock()
	gate, slow := l.gate, l.slow
	l.mu.Unlock()
	if slow > 0 {
		time.Sleep(rand.N(slow))
	}
	if gate != nil {
		select {
		case <-gate:
		case <-broken:
		}
	}
	select {
	case <-broken:
		return errBroken
	default:
		return nil
	}
}

func (l *line) Partition() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate == nil {
		l.gate = make(chan struct{})
	}
}

func (l *line) Heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = 0
	if l.gate != nil {
		close(l.gate)
		l.gate = nil
	}
}

func (l *line) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		close(l.broken)
	}
	l.broken = make(chan struct{})
}

func (l *line) Slow(most time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = most
}

// Close loses what is under way, and refuses later requests.
func (l *line) Close() {
	l.Reset()
	l.Heal()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.under.Wait()
}
