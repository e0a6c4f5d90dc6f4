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

// sessionState is the state of a session, as opening its file shows it.
type sessionState int

const (
	alive   sessionState = iota
	ended                // its process has died, or has closed it
	missing              // the file was removed, which only a closed session may do to its own
)

// freshPrefix marks a session file that is being made.
const freshPrefix = "new-"

// session lives as long as its file has an owner; see sessionfile_*.go.
type session struct {
	store *store
	opts  driver.SessionOptions
	id    sessionID

	done context.Context // ends with Close, and bounds what runs in the background
	stop context.CancelFunc
	work sync.WaitGroup

	lastUpkeep    atomic.Int64 // when upkeep ran last, since store.began
	upkeepRunning atomic.Bool  // the timer is set

	mu      sync.Mutex
	closed  bool
	fds     []int              // of its file; more than one after that was removed and made anew
	number  uint64             // of the last ticket
	tickets map[uint64]*ticket // those that have entered
	timer   *time.Timer
}

// openSession takes over a use of the store, unless it fails.
func openSession(s *store, o driver.SessionOptions) (*session, error) {
	n := &session{store: s, opts: o, tickets: map[uint64]*ticket{}}
	n.done, n.stop = context.WithCancel(context.Background())
	copy(n.id[:], strings.ToLower(rand.Text())) // 26 letters of 5 bits; 80 bits are enough
	fd, err := s.access.newSessionFile(s.sessionsDir, n.id)
	if err != nil {
		return nil, err
	}
	n.fds = []int{fd}
	if err := s.notifier.addSession(n, fd); err != nil {
		closeFD(fd)
		_ = unix.Unlinkat(s.sessionsDir, n.id.String(), 0)
		return nil, err
	}
	if err := s.add(n); err != nil {
		n.endLife(true)
		return nil, err
	}
	n.timer = time.AfterFunc(time.Hour, n.upkeepOfHolder)
	n.timer.Stop() // until something is held
	return n, nil
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

// register makes a ticket known to wake, before its entry can be seen. false says
// that the session has been closed: Close sees a ticket, or the ticket sees the close.
func (s *session) register(t *ticket) bool {
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

// lookAgain has the next Wait of a ticket look at once, even if it is told of a grant meanwhile.
// The Wait before has taken a signal and may have failed before it looked: its context had ended,
// say. What the signal was about is told once.
func (s *session) lookAgain(t *ticket) {
	s.mu.Lock()
	t.mustLook = true
	s.mu.Unlock()
	t.signal.Notify()
}

// wake passes a signal on; holds is wakeTarget's. A ticket that holds waits for nothing: it is
// signalled after a grant that it found by itself, or because it was evicted. So it is looked at,
// unless the signal is that very grant.
func (s *session) wake(number, holds uint64) {
	s.mu.Lock()
	t := s.tickets[number]
	inspect := t != nil && holds == 0 && t.held.Load() && !s.closed
	if inspect {
		s.work.Add(1)
	}
	if t != nil && holds != 0 {
		t.grant = holds
	} else if t != nil {
		t.mustLook = true
	}
	s.mu.Unlock()
	if t != nil {
		t.signal.Notify()
	}
	if inspect {
		// Not here: a stopped process may hold the lock of the queue file,
		// and other signals must be read.
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
		s.wake(n, 0)
	}
}

// Close removes the entries, signals those that are next, and then ends the session. If
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
		s.store.wakeAll() // no death is reported to them: the session was of this process
	}
	s.store.leave()
	return nil
}

// endLife closes the session's file, which ends all that is left of it, and removes it if
// nothing in the store refers to it any more.
func (s *session) endLife(tidy bool) {
	s.mu.Lock()
	fds := s.fds
	s.fds = nil
	s.mu.Unlock()
	for _, fd := range fds {
		s.store.notifier.removeSession(fd)
	}
	if tidy {
		_ = unix.Unlinkat(s.store.sessionsDir, s.id.String(), 0) // swept later, at worst
	}
}
