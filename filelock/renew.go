//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// holderUpkeepEvery is how often a session that holds something checks what nothing reports:
// see upkeep. One that only waits does so when it looks at its queue, and one that does
// neither when it enters: a process costs nothing while it waits.
const holderUpkeepEvery = 3 * time.Second

// KeepAlive has nothing to renew.
func (s *session) KeepAlive(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := s.ended(); err != nil {
		return 0, err
	}
	return driver.Forever, nil
}

// upkeep checks what nothing else would notice, unless it has done so not long ago: a
// store directory that was replaced, and a session file that was removed. Others take its
// absence for unknown and not for a death, but they cannot signal; a new one under the
// same name repairs that.
func (s *session) upkeep(ctx context.Context, every time.Duration) error {
	now := time.Since(s.store.began) + 1
	if last := time.Duration(s.lastUpkeep.Load()); last != 0 && now-last < every {
		return s.store.failure()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return s.ended()
	}
	s.work.Add(1) // Close waits before it takes fds away
	last := s.fds[len(s.fds)-1]
	s.mu.Unlock()
	defer s.work.Done()
	s.lastUpkeep.Store(int64(now))

	if err := s.store.check(); err != nil {
		return err
	}
	// By its name: a hard link elsewhere, as some backups make, would keep a removed file in
	// being. What cannot be looked at has not been removed.
	var own, there unix.Stat_t
	err := unix.Fstatat(s.store.sessionsDir, s.id.String(), &there, unix.AT_SYMLINK_NOFOLLOW)
	if unix.Fstat(last, &own) != nil || err == nil && own.Ino == there.Ino || err != nil && err != unix.ENOENT {
		return nil
	}
	fd, err := s.store.access.newSessionFile(s.store.sessionsDir, s.id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.fds = append(s.fds, fd)
	s.mu.Unlock()
	err = s.store.notifier.addSession(s, fd)
	s.wakeAll() // for what could not be signalled meanwhile
	return err
}

// holds starts the timer of upkeepOfHolder, which goes on for as long as anything is held.
func (s *session) holds() {
	if s.upkeepRunning.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !s.upkeepRunning.Swap(true) {
		s.timer.Reset(holderUpkeepEvery)
	}
}

func (s *session) upkeepOfHolder() {
	_ = s.upkeep(s.done, 0) // a failure is told by Gone, and what cannot be repaired is tried again
	s.review()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.upkeepRunning.Store(false) // before the look: what is held later finds it so, in holds
	for _, t := range s.tickets {
		if t.held.Load() && !s.closed {
			s.upkeepRunning.Store(true)
			s.timer.Reset(holderUpkeepEvery)
			return
		}
	}
}

// reviewBound is how long a review may wait for critical sections of others, in all. What it
// has not come to is looked at the next time.
const reviewBound = time.Second

// review looks whether everything that is held is still in the store, every holderUpkeepEvery. A
// holder is signalled when it is evicted, where the notifier can. No signal comes when an older
// copy is written into a queue file, and a process that opens the file then can hold what we
// believe to hold.
//
// The entries of a file are looked at in one critical section: 10,000 held locks take 64 of
// them, a few milliseconds in all.
func (s *session) review() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.work.Add(1) // Close waits
	defer s.work.Done()
	held := map[*queueFile][]*ticket{}
	for _, t := range s.tickets {
		if t.held.Load() {
			held[t.file] = append(held[t.file], t)
		}
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.done, reviewBound)
	defer cancel()
	for q, tickets := range held {
		s.inspect(ctx, q, tickets)
	}
}

// heldIn finds what this process holds in a queue file, whose mutex the caller has.
func (s *store) heldIn(q *queueFile) (held []*ticket) {
	for _, o := range s.all() {
		o.mu.Lock()
		for _, t := range o.tickets {
			if t.file == q && t.held.Load() {
				held = append(held, t)
			}
		}
		o.mu.Unlock()
	}
	return held
}

// dropRestored tells each holder in this process with an entry in a queue file that it is gone,
// and then takes the file as it is. Nothing is granted in between: the file is refused
// until then, also to calls that come here at once. Of these the first to be through lets others
// in, of which the rest know nothing, and which they must not tell.
func (s *store) dropRestored(q *queueFile, held []*ticket, why error) {
	for _, t := range held {
		// Told first: a call that comes here beside us and does not find it any more
		// must be right to go on.
		t.session.opts.Gone(t.request.ID, asGone(why))
		t.session.forget(t)
	}
	q.last.Store(0)
}

// inspect tells the core which of some held entries of one file are not there any more.
func (s *session) inspect(ctx context.Context, q *queueFile, tickets []*ticket) {
	for _, t := range q.missing(ctx, tickets) {
		s.forget(t)
		s.opts.Gone(t.request.ID, fmt.Errorf("%w: evicted", driver.ErrGone))
	}
}

// missing returns those of the tickets whose entries have gone without them. In a file that
// cannot be read no lock is granted: they are not missing then.
func (q *queueFile) missing(ctx context.Context, tickets []*ticket) (gone []*ticket) {
	if q.lock(ctx) != nil {
		return nil
	}
	defer q.unlock()
	here := make(map[uint64]sessionID, len(q.records))
	for _, r := range q.records {
		if r.units != 0 {
			here[r.seq] = r.session
		}
	}
	for _, t := range tickets {
		if here[t.seq] != t.session.id && !t.left.Load() {
			gone = append(gone, t)
		}
	}
	return gone
}
