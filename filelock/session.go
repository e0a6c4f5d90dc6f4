//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// life is what opening a session's file told about the session.
type life int

const (
	alive   life = iota
	ended        // its process has died, or has closed it
	missing      // the file was removed, which only a closed session may do to its own
)

// freshPrefix marks a session file that is being made.
const freshPrefix = "new-"

// session lives as long as its file has an owner; see life_*.go.
type session struct {
	store *store
	opts  driver.SessionOptions
	id    sessionID

	done context.Context // ends with Close, and bounds what runs in the background
	stop context.CancelFunc
	work sync.WaitGroup

	looked  atomic.Int64 // when upkeep did last, since store.began
	tending atomic.Bool  // the timer is set

	mu      sync.Mutex
	closed  bool
	fds     []int              // of its file; more than one after that was removed and made anew
	number  uint64             // of the last ticket
	tickets map[uint64]*ticket // those that have entered
	timer   *time.Timer
}

// tendEvery is how often a session that holds something looks after what nobody tells of:
// see upkeep. One that only waits does so when it looks at its queue, and one that does
// neither when it enters: a process costs nothing while it waits.
const tendEvery = 3 * time.Second

// openSession takes over a use of the store, unless it fails.
func openSession(s *store, o driver.SessionOptions) (*session, error) {
	n := &session{store: s, opts: o, tickets: map[uint64]*ticket{}}
	n.done, n.stop = context.WithCancel(context.Background())
	copy(n.id[:], strings.ToLower(rand.Text())) // 26 letters of 5 bits; 80 bits are enough
	fd, err := newLife(s.lives, n.id)
	if err != nil {
		return nil, err
	}
	n.fds = []int{fd}
	if err := s.post.addBell(n, fd); err != nil {
		hangUp(fd)
		_ = unix.Unlinkat(s.lives, n.id.String(), 0)
		return nil, err
	}
	if err := s.add(n); err != nil {
		n.endLife(true)
		return nil, err
	}
	n.timer = time.AfterFunc(time.Hour, n.tend)
	n.timer.Stop() // until something is held
	return n, nil
}

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

func (s *session) ended() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: the session was closed", driver.ErrGone)
	}
	return s.store.failure()
}

// Ticket prepares an entry.
func (s *session) Ticket(r driver.Request) driver.Ticket {
	k := newKey(r.Name)
	s.mu.Lock()
	s.number++
	number := s.number
	s.mu.Unlock()
	return &ticket{
		session: s, request: r, key: k, file: s.store.file(k), number: number,
	}
}

// enlist makes a ticket known to those who ring, before its entry can be seen. false says
// that the session has been closed: Close sees a ticket, or the ticket sees the close.
func (s *session) enlist(t *ticket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tickets[t.number] = t
	}
	return !s.closed
}

func (s *session) forget(t *ticket) {
	s.mu.Lock()
	delete(s.tickets, t.number)
	s.mu.Unlock()
}

// wake passes a ring on. A ticket that holds waits for nothing; it is rung after a grant
// that it found by itself, or because it was evicted, so it is looked at.
func (s *session) wake(number uint64) {
	s.mu.Lock()
	t := s.tickets[number]
	inspect := t != nil && t.held.Load() && !s.closed
	if inspect {
		s.work.Add(1)
	}
	s.mu.Unlock()
	if t != nil {
		t.bell.Ring()
	}
	if inspect {
		// Not here: the lock of the queue file may be in the hands of a stopped process,
		// and other bells must be heard.
		go func() {
			defer s.work.Done()
			s.inspect(s.done, t.file, []*ticket{t})
		}()
	}
}

func (s *session) wakeAll() {
	s.mu.Lock()
	numbers := make([]uint64, 0, len(s.tickets))
	for n := range s.tickets {
		numbers = append(numbers, n)
	}
	s.mu.Unlock()
	for _, n := range numbers {
		s.wake(n)
	}
}

// upkeep looks after what nothing else would notice, unless it has done so not long ago: a
// store directory that was replaced, and a session file that was removed. Others take its
// absence for a mystery and not for a death, but they cannot ring; a new one under the
// same name mends that.
func (s *session) upkeep(ctx context.Context, every time.Duration) error {
	now := time.Since(s.store.began) + 1
	if last := time.Duration(s.looked.Load()); last != 0 && now-last < every {
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
	s.looked.Store(int64(now))

	if err := s.store.check(); err != nil {
		return err
	}
	// By its name: a hard link elsewhere, as some backups make, would keep a removed file in
	// being. What cannot be looked at has not been removed.
	var own, there unix.Stat_t
	err := unix.Fstatat(s.store.lives, s.id.String(), &there, unix.AT_SYMLINK_NOFOLLOW)
	if unix.Fstat(last, &own) != nil || err == nil && own.Ino == there.Ino || err != nil && err != unix.ENOENT {
		return nil
	}
	fd, err := newLife(s.store.lives, s.id)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.fds = append(s.fds, fd)
	s.mu.Unlock()
	err = s.store.post.addBell(s, fd)
	s.wakeAll() // for what could not be rung meanwhile
	return err
}

// holds starts the tending, which goes on for as long as anything is held.
func (s *session) holds() {
	if s.tending.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && !s.tending.Swap(true) {
		s.timer.Reset(tendEvery)
	}
}

func (s *session) tend() {
	_ = s.upkeep(s.done, 0) // a failure is told by Gone, and what cannot be mended is tried again
	s.review()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tickets {
		if t.held.Load() && !s.closed {
			s.timer.Reset(tendEvery)
			return
		}
	}
	s.tending.Store(false)
}

// Close removes the entries, ringing who is next, and then ends the session's life. If
// something keeps an entry from being removed, its session file stays as the proof that
// it is dead: others remove both.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.timer.Stop()
	tickets := make([]*ticket, 0, len(s.tickets))
	for _, t := range s.tickets {
		tickets = append(tickets, t)
	}
	s.mu.Unlock()
	s.stop()
	s.work.Wait()

	var failed error
	for _, t := range tickets {
		if err := t.Leave(ctx); err != nil && !errors.Is(err, driver.ErrGone) {
			failed = err
		}
	}
	s.store.drop(s)
	s.endLife(failed == nil)
	if failed != nil {
		s.store.wakeAll() // no death tells them: to this process it was one of its own
	}
	s.store.leave()
	return nil
}

// endLife closes the session's file, which ends whatever is left of it, and removes it if
// nothing in the store refers to it any more.
func (s *session) endLife(tidy bool) {
	s.mu.Lock()
	fds := s.fds
	s.fds = nil
	s.mu.Unlock()
	for _, fd := range fds {
		s.store.post.dropBell(fd)
	}
	if tidy {
		_ = unix.Unlinkat(s.store.lives, s.id.String(), 0) // swept later, at worst
	}
}
