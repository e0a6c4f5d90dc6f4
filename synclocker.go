package hasp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// SyncLocker returns the lock as a [sync.Locker], for code that asks for one and knows neither contexts
// nor errors. Such code cannot stop its work when the lock is lost, and has no token for a fence: where you
// can choose, [Mutex.Do] and [Mutex.Lock] are better.
//
// Its Lock waits as [Mutex.Lock] does with ctx, and tries again while the store cannot be reached; observers are
// told ([EventFailed]), and if there are none, log/slog's default logger is. Its Unlock is [Lease.Unlock]; like that of a [sync.Mutex] it may be called by another goroutine, and panics if
// nothing is locked. The values of ctx reach the observers.
//
// failed is told what Lock and Unlock cannot return:
//   - the *LostError of a lock that is lost before it is unlocked, at once and in another goroutine, or when Unlock finds it lost;
//   - the error of a Lock that cannot succeed: ctx has ended, or no repetition cures it ([ErrClosed],
//     [ErrInvalidName], [ErrMismatch] and so on; see [Election.Run]). If failed returns, Lock panics with the error, since it
//     must not return without the lock.
//
// Most programs should end then: failed is log.Fatal. A nil failed panics with the error.
//
// All methods are safe for concurrent use. A lock that several may hold ([RWMutex.RLocker],
// [Semaphore.Locker]) may be locked again before it is unlocked; Unlock then gives back one of the holds.
func SyncLocker(ctx context.Context, lock Locker, failed func(error)) sync.Locker {
	if failed == nil {
		failed = func(err error) { panic(err) }
	}
	return &syncLocker{ctx: ctx, lock: lock, failed: failed}
}

type syncLocker struct {
	ctx    context.Context
	lock   Locker
	failed func(error)

	mu     sync.Mutex
	locked bool // at least once
	holds  []*syncHold
}

// syncHold is a lease, and whether its loss was told.
type syncHold struct {
	lease *Lease
	told  sync.Once
}

func (s *syncLocker) Lock() {
	var b backoff
	for {
		began := time.Now()
		lease, err := s.take()
		if err == nil {
			s.hold(lease)
			return
		}
		if s.give(err) || !b.sleep(s.ctx) {
			s.failed(err)
			panic(err)
		}
		part := s.lock.part()
		part.client.logUnheard(Event{Kind: EventFailed, Context: s.ctx, Name: part.name, Wait: time.Since(began), Err: err})
	}
}

// give reports that Lock gives up. A store that refuses may do so for a moment only, in a failover; not
// one that has refused from the start.
func (s *syncLocker) give(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ctx == nil || s.ctx.Err() != nil || hopeless(err) || !s.locked && errors.Is(err, ErrRefused)
}

func (s *syncLocker) take() (*Lease, error) {
	if s.lock == nil {
		return nil, fmt.Errorf("hasp: lock: %w: the lock is nil", ErrInvalidOption)
	}
	return s.lock.Lock(s.ctx)
}

// hold notes the lease, whose context ends when it is lost.
func (s *syncLocker) hold(lease *Lease) {
	h := &syncHold{lease: lease}
	context.AfterFunc(lease.Context(), func() { s.lost(h, lease.Err()) })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.locked, s.holds = true, append(s.holds, h)
}

func (s *syncLocker) Unlock() {
	s.mu.Lock()
	last := len(s.holds) - 1
	if last < 0 {
		s.mu.Unlock()
		panic("hasp: Unlock of a SyncLocker that is not locked")
	}
	h := s.holds[last]
	s.holds = s.holds[:last]
	s.mu.Unlock()
	s.lost(h, h.lease.unlock()) // the release may be the first to learn of it
}

// lost tells of a loss once, if the error is one.
func (s *syncLocker) lost(h *syncHold, err error) {
	if errors.Is(err, ErrLost) {
		h.told.Do(func() { s.failed(err) })
	}
}
