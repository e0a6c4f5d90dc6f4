package fencing

import "sync"

// Fence fences a resource in the memory of this process: a cache, a device, a connection to
// something that cannot compare tokens itself. It remembers the greatest token seen. All
// methods may be called at once from many goroutines.
//
// A Fence is as durable as its process. If the resource outlives that, store Seen with it,
// in the same atomic write, and start from there.
type Fence struct {
	name string

	// mu is held for reading during a write, for writing while seen grows. An Advance so
	// waits for the writes under older tokens that have begun, and when it returns none of
	// them is still to come. Writes under the same token run beside each other.
	mu   sync.RWMutex
	seen uint64
}

// NewFence returns the fence of the resource that a lock protects. seen is the greatest token
// that the resource remembers from before, or 0.
func NewFence(name string, seen uint64) *Fence {
	return &Fence{name: name, seen: seen}
}

// Seen returns the greatest token that was here.
func (f *Fence) Seen() uint64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.seen
}

// Advance has every smaller token refused from now on. It waits for writes of smaller tokens
// that have begun. It returns a *StaleError if a greater token has been here.
func (f *Fence) Advance(token uint64) error {
	return f.Do(token, func() error { return nil })
}

// Do advances to the token and runs write, unless a greater token has been here: then it
// returns a *StaleError. No greater token is let in before write has returned, so write must
// not wait for long, and not for another call with this Fence.
func (f *Fence) Do(token uint64, write func() error) error {
	if err := Check(f.name, token); err != nil {
		return err
	}
	// Between growing and taking the lock for reading a still greater token may come; the
	// comparison that counts is the one made under the lock that write runs under.
	f.grow(token)
	f.mu.RLock()
	defer f.mu.RUnlock()
	if err := Compare(f.name, token, f.seen); err != nil {
		return err
	}
	return write()
}

func (f *Fence) grow(token uint64) {
	if f.Seen() >= token { // the usual case, which must not wait for writes under way
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = max(f.seen, token)
}

// Fences has one Fence for each lock name. The zero value is ready for use, by many
// goroutines. None is ever dropped, about 100 bytes each: one that was forgotten would let
// every old token in. Names must therefore not be made up by whoever sends requests.
type Fences struct {
	mu sync.Mutex
	of map[string]*Fence
}

// Of returns the fence of a lock name, always the same.
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
