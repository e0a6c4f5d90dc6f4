//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"time"
)

// watchPoll is how often a watched name is read. People watch names, and holders that can be asked:
// no wake-up of a lock depends on it. *Rejected*: inotify, by which a change is told in a
// millisecond; a user has 128 instances of it in all, so the poll has to be there besides.
const watchPoll = 100 * time.Millisecond

// Watch calls changed again and again: what it reads shows whether something has changed. To
// compare here would not do: an entry that came and went between two readings may have been seen by
// our caller, which then waits for its end.
func (b *backend) Watch(ctx context.Context, _ string, changed func()) error {
	s, err := b.use(ctx)
	if err != nil {
		return err
	}
	defer s.leave()
	tick := time.NewTicker(watchPoll)
	defer tick.Stop()
	for {
		changed()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.check(); err != nil {
			return err
		}
	}
}
