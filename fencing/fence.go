package fencing

import (
	"fmt"
	"sync"
)

// Fence fences a resource in the memory of this process: a cache, a device, a connection to a
// system that cannot compare tokens itself. It remembers the greatest token seen. All methods may
// be called at once from many goroutines.
//
// A Fence is as durable as its process. If the resource outlives that, store Seen with it,
// in the same atomic write, and start from there.
type Fence struct {
	name string

	// mu is held for reading during a write, for writing while seen grows. So a With waits for
	// the writes under older tokens that have begun, and when it returns, none of them is still
	// running. Writes under the same token run concurrently.
	mu   sync.RWMutex
	seen uint64
}

// NewFence returns the fence of the resource that a lock protects. seen is the greatest token
// that the resource remembers from before, or 0.
func NewFence(name string, seen uint64) *Fence {
	return &Fence{name: name, seen: seen}
}

// Seen returns the greatest token seen.
func (f *Fence) Seen() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.seen
}

// With makes the fence refuse every token smaller than the lease's from now on, and returns the Writer
// of this token. It waits for writes of smaller tokens that have begun: what is read after With has all
// that they wrote. It returns a *StaleError if the fence has seen a greater token, and ErrInvalid
// if the lease is of another lock.
func (f *Fence) With(lease Grant) (*Writer, error) {
	name, token := lease.Name(), lease.Token()
	if err := Check(name, token); err != nil {
		return nil, err
	}
	if name != f.name {
		return nil, fmt.Errorf("%w: this is protected by the lock %q, and the token is of %q", ErrInvalid, f.name, name)
	}
	f.grow(token)
	w := &Writer{f, token}
	// A greater token may have been here before, or may have come since.
	if err := w.Do(func() error { return nil }); err != nil {
		return nil, err
	}
	return w, nil
}

// Writer writes under one token, to which its Fence has advanced. Its method may be called at
// once from many goroutines.
type Writer struct {
	fence *Fence
	token uint64
}

// Do runs write, unless the fence has seen a greater token: then it returns a *StaleError. The fence
// accepts no greater token before write has returned, so write must not wait for long, and not for
// another call with this Fence.
func (w *Writer) Do(write func() error) error {
	w.fence.mu.RLock()
	defer w.fence.mu.RUnlock()
	if err := Compare(w.fence.name, w.token, w.fence.seen); err != nil {
		return err
	}
	return write()
}

func (f *Fence) grow(token uint64) {
	if f.Seen() >= token { // the usual case, which must not wait for running writes
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = max(f.seen, token)
}

// Fences has one Fence for each lock name. The zero value is ready for use, by many goroutines. It
// never drops one (about 100 bytes each): a forgotten fence would accept every old token. So
// clients that send requests must not be able to choose the names.
type Fences struct {
	mu sync.Mutex
	of map[string]*Fence
}

// Of returns the fence of a lock name, the same at each call.
func (f *Fences) Of(name string) *Fence {
	f.mu.Lock()
	defer f.mu.Unlock()
	fence := f.of[name]
	if fence == nil {
		if f.of == nil {
			f.of = map[string]*Fence{}
		}
		fence = NewFence(name, 0)
		f.of[name] = fence
	}
	return fence
}

// Grant names a lock and the token of one of its holders. A *hasp.Lease is one; [GrantOf] makes one
// where the lease is in another process.
type Grant interface {
	Name() string  // of the lock
	Token() uint64 // greater than that of every earlier grant of the name
}

// GrantOf returns the grant of a lease that another process has: by HASP_NAME and HASP_TOKEN in the
// environment of the command of hasp run, say. It checks nothing; every With does.
func GrantOf(name string, token uint64) Grant { return grant{name, token} }

type grant struct {
	name  string
	token uint64
}

func (g grant) Name() string  { return g.name }
func (g grant) Token() uint64 { return g.token }
