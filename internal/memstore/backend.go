// Package memstore is the store in memory: the reference for what a driver must do. Package memlock
// makes a lock of it, and package hasptest makes faults on it, for tests of programs that lock. It
// follows testing/synctest's fake time.
//
// It promises everything in driver.Traits. Nothing survives the process. Its sessions
// expire like those of a server, if they are not renewed.
package memstore

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

type backend struct{ store *Store }

func (b *backend) String() string { return b.store.label }

func (b *backend) Traits() driver.Traits {
	return driver.Traits{
		FIFO: true, Shared: true, Counting: true, Fencing: true, Values: true, Push: true,
		Liveness: driver.Leased,
	}
}

func (b *backend) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	st := b.store
	if err := st.arrive(ctx); err != nil {
		return nil, 0, err
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	st.sessions++
	s := &session{
		store: st, opts: o, id: "s" + strconv.FormatUint(st.sessions, 10),
		entries: map[string]*entry{}, ended: make(chan struct{}),
	}
	s.expiry = time.AfterFunc(o.TTL, s.expire)
	st.open[s] = struct{}{}
	return s, o.TTL, nil
}

func (b *backend) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	if err := b.store.arrive(ctx); err != nil {
		return nil, err
	}
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	return b.store.list(name, limit), nil
}

func (b *backend) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if err := b.store.arrive(ctx); err != nil {
		return err
	}
	b.store.mu.Lock()
	names := b.store.names(prefix)
	b.store.mu.Unlock()
	for _, name := range names {
		if ctx.Err() != nil || !yield(name) {
			break
		}
	}
	return ctx.Err()
}

func (b *backend) Watch(ctx context.Context, name string, changed func()) error {
	st := b.store
	w := &watcher{signal: make(chan struct{}, 1)}
	st.mu.Lock()
	st.watchers[name] = append(st.watchers[name], w)
	st.mu.Unlock()
	defer func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		rest := slices.DeleteFunc(st.watchers[name], func(o *watcher) bool { return o == w })
		if st.watchers[name] = rest; len(rest) == 0 {
			delete(st.watchers, name)
		}
	}()
	for {
		changed()
		select {
		case <-w.signal:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (b *backend) Close() error { return nil }

// session expires by a timer of the store's, as on a server.
type session struct {
	store   *Store
	opts    driver.SessionOptions
	id      string
	expiry  *time.Timer
	entries map[string]*entry // that are in queues, by ID; guarded by store.mu
	once    sync.Once
	ended   chan struct{}
}

func (s *session) live() bool {
	select {
	case <-s.ended:
		return false
	default:
		return true
	}
}

func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := s.store.arrive(ctx); err != nil {
		return 0, err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if !s.live() {
		return 0, driver.ErrGone
	}
	// If the timer has fired and waits for mu, the session ends right after this, within
	// the time promised. Reset says so, and the caller is told the truth instead.
	if !s.expiry.Stop() {
		return 0, driver.ErrGone
	}
	s.expiry.Reset(s.opts.TTL)
	return s.opts.TTL, nil
}

func (s *session) Ticket(r driver.Request) driver.Ticket {
	return &ticket{session: s, request: r}
}

func (s *session) Close(ctx context.Context) error {
	if err := s.store.arrive(ctx); err != nil {
		return err
	}
	s.end()
	return nil
}

// expire ends the session. A client that is cut off from the store hears nothing of that: its trust
// has ended before, or it is told by its next request that goes through.
func (s *session) expire() {
	s.store.mu.Lock()
	s.endLocked()
	cut := s.store.faults.cut != nil
	s.store.mu.Unlock()
	if !cut {
		s.tellExpired()
	}
}

func (s *session) tellExpired() {
	s.opts.Gone("", fmt.Errorf("%w: session expired", driver.ErrGone))
}

func (s *session) end() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.endLocked()
}

func (s *session) endLocked() {
	s.once.Do(func() {
		s.expiry.Stop()
		delete(s.store.open, s)
		close(s.ended)
		for _, e := range s.entries {
			s.store.remove(e)
		}
	})
}
