//go:build darwin || freebsd || (linux && hasp_poll)

package filelock

import (
	"sync"
	"time"
)

// pushes is not promised.
const pushes = false

// post wakes by the clock, where the kernel has no bell to ring: see life_flock.go. While
// somebody waits, one goroutine of the store wakes all who do, and each looks at the queue
// and at those it waits for. Nobody outside the process is rung.
//
// The build tag hasp_poll puts it in the place of post_linux.go, so that the conformance
// suite can be run on it without a Mac.
type post struct {
	store *store

	mu      sync.Mutex
	closed  bool
	running bool
	waiting map[*waiter]struct{}
	work    sync.WaitGroup
}

// watches is what a waiter needs to be found by; here it is in post.waiting.
type watches struct{}

// wakeEvery bounds the delay of every wake-up. A death must be noticed within 100 ms.
const wakeEvery = 20 * time.Millisecond

func newPost(s *store) (*post, error) {
	return &post{store: s, waiting: map[*waiter]struct{}{}}, nil
}

func (p *post) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.work.Wait()
}

// run ends when nobody waits, or with close.
func (p *post) run() {
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
			w.bell.Ring()
		}
		p.mu.Unlock()
	}
}

func (p *post) addBell(*session, int) error { return nil }

// dropBell ends the session's life.
func (p *post) dropBell(fd int) { hangUp(fd) }

// ring wakes a ticket of this process. Those of others wake by themselves.
func (p *post) ring(who party) {
	if s := p.store.session(who.session); s != nil {
		s.wake(who.ticket)
	}
}

// watch has the waiter signalled often, and reports those of the sessions that have died.
func (p *post) watch(w *waiter, ids []sessionID) (gone dead, retry time.Duration, err error) {
	gone, err = p.store.living(ids)
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
	fd, l, err := knock(s.lives, id)
	hangUp(fd)
	return err == nil && l == missing
}

func (p *post) unwatch(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, w)
}

// watchFile leaves it to the caller to look often.
func (p *post) watchFile(*waiter, int) (poll time.Duration, stop func()) {
	return watchPoll, func() {}
}
