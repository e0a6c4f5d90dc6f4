//go:build darwin || freebsd || (linux && hasp_poll)

package filelock

import (
	"sync"
	"time"
)

// pushes is not promised.
const pushes = false

// notifier wakes by the clock, where the kernel does not report deaths: see sessionfile_flock.go.
// While any ticket waits, one goroutine of the store wakes all that do, and each looks at the queue
// and at those it waits for. Nothing outside the process is signalled.
//
// The build tag hasp_poll replaces notifier_linux.go by it, so that the conformance
// suite can be run on it without a Mac.
type notifier struct {
	store *store

	mu      sync.Mutex
	closed  bool
	running bool
	waiting map[*waiter]struct{}
	work    sync.WaitGroup
}

// peerWatches is empty: the waiter is in notifier.waiting.
type peerWatches struct{}

// wakeEvery bounds the delay of every wake-up. A death must be noticed within 100 ms.
const wakeEvery = 20 * time.Millisecond

func newNotifier(s *store) (*notifier, error) {
	return &notifier{store: s, waiting: map[*waiter]struct{}{}}, nil
}

func (p *notifier) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.work.Wait()
}

// run ends when no ticket waits, or with close.
func (p *notifier) run() {
	defer p.work.Done()
	for {
		time.Sleep(wakeEvery)
		p.mu.Lock()
		if p.closed || len(p.waiting) == 0 {
			p.running = false
			p.mu.Unlock()
			return
		}
		for w := range p.waiting {
			w.signal.Notify()
		}
		p.mu.Unlock()
	}
}

func (p *notifier) addSession(*session, int) error { return nil }

// removeSession closes the session's file, which ends the session.
func (p *notifier) removeSession(fd int) { closeFD(fd) }

// tell signals a ticket of this process. Those of others wake by themselves.
func (p *notifier) tell(who wakeTarget) {
	if s := p.store.session(who.session); s != nil {
		s.wake(who.ticket, who.holds)
	}
}

// watch has the waiter signalled often, and reports those of the sessions that have died.
func (p *notifier) watch(w *waiter, ids []sessionID) (gone deadSessions, retry time.Duration, err error) {
	gone, err = p.store.endedSessions(ids)
	for _, id := range ids {
		if err == nil && !gone[id] && p.store.isMissing(id) {
			err = &missingError{p.store.path, id}
		}
	}
	if err != nil {
		retry = blindRetry
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !w.left.Load() && !p.closed {
		p.waiting[w] = struct{}{}
		if !p.running {
			p.running = true
			p.work.Add(1)
			go p.run()
		}
	}
	return gone, retry, err
}

// isMissing reports that a session, not known to be dead, has no file.
func (s *store) isMissing(id sessionID) bool {
	if s.session(id) != nil {
		return false
	}
	fd, l, err := s.access.openSessionFile(s.sessionsDir, id)
	closeFD(fd)
	return err == nil && l == missing
}

func (p *notifier) unwatch(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, w)
}
