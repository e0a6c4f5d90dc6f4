//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"slices"
	"time"
)

const (
	// watchPoll is how often a watched name is read where changes are not announced.
	watchPoll = 100 * time.Millisecond
	// watchRest keeps a busy queue file from making its watchers as busy: changes that
	// come closer together are folded.
	watchMinInterval = 5 * time.Millisecond
)

// Watch calls changed whenever the name's file is written to or one of the name's owners
// dies. Other names share the file, so some calls are about nothing. To compare what is read
// here with what was read before would not do: an entry that came and went between two
// readings may have been seen by our caller, which then waits for its end.
func (b *backend) Watch(ctx context.Context, name string, changed func()) error {
	s, err := b.use(ctx)
	if err != nil {
		return err
	}
	defer s.leave()
	var w waiter
	poll, stop := s.notifier.watchFile(&w, fileOf(newKey(name).hash))
	defer stop()
	defer s.notifier.unwatch(&w)
	for {
		ids, err := s.owners(ctx, newKey(name))
		if err != nil {
			return err
		}
		gone, retry, _ := s.notifier.watch(&w, ids) // if it cannot be watched, retry says when to look
		changed()
		if len(gone) > 0 {
			continue // died since we have read
		}
		if err := w.next(ctx, poll, retry); err != nil {
			return err
		}
		if err := s.check(); err != nil {
			return err
		}
	}
}

// owners returns the living sessions that have entries of a name.
func (s *store) owners(ctx context.Context, k key) ([]sessionID, error) {
	q := s.file(k)
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	tail, _, err := q.find(k)
	var ids []sessionID
	if err == nil {
		ids, err = q.sessions(tail)
	}
	q.unlock()
	if err != nil {
		return nil, err
	}
	gone, err := s.endedSessions(ids)
	return slices.DeleteFunc(ids, func(id sessionID) bool { return gone[id] }), err
}

// next waits until it is time to look again.
func (w *waiter) next(ctx context.Context, poll, retry time.Duration) error {
	rest := time.NewTimer(watchMinInterval)
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	every := slowRetry()
	if poll > 0 {
		every = poll
	}
	if retry > 0 {
		every = min(every, retry)
	}
	late := time.NewTimer(every)
	defer late.Stop()
	select {
	case <-w.signal.C():
	case <-late.C:
	case <-ctx.Done():
	}
	return ctx.Err()
}
