//go:build linux || darwin || freebsd

package filelock

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// store is an open store directory. It keeps a shared flock on the
// directory itself for as long as it exists, and so does every process that uses the
// store: a process that gets the exclusive one knows that no lock is held (see dir.go).
type store struct {
	path                         string
	root, queuesDir, sessionsDir int // directories
	access                       access
	files                        [queueFiles]*queueFile
	notifier                     *notifier
	uses                         atomic.Int32 // by the backend, sessions and calls under way
	closed                       atomic.Bool

	began time.Time

	mu       sync.Mutex
	sessions map[sessionID]*session
	failed   error // set once: the directory is no longer the one at path
}

// newStore takes over the descriptors.
func newStore(path string, root, queues, lives int, a access) (*store, error) {
	s := &store{path: path, access: a, root: root, queuesDir: queues, sessionsDir: lives, began: time.Now(), sessions: map[sessionID]*session{}}
	for n := range s.files {
		s.files[n] = newQueueFile(s, n)
	}
	var err error
	if s.notifier, err = newNotifier(s); err != nil {
		s.closeDirs()
		return nil, err
	}
	return s, nil
}

func (s *store) file(k key) *queueFile { return s.files[k.file()] }

// mayWrite refuses root in a private store of another user: what root makes there its owner could
// not use.
func (s *store) mayWrite() error {
	if !s.access.look {
		return nil
	}
	return fmt.Errorf("%w (%w): %s is the store of uid %d, and root only looks at it; do this as that user (setpriv --reuid %[4]d --clear-groups, sudo -u '#%[4]d')",
		driver.ErrInvalid, driver.ErrReadOnly, s.path, s.access.uid)
}

// leave ends one use, and with the last of them everything of this process in the store.
func (s *store) leave() {
	if s.uses.Add(-1) > 0 {
		return
	}
	s.closed.Store(true)
	s.notifier.close()
	for _, q := range s.files {
		q.close()
	}
	s.closeDirs()
}

// closeDirs also gives up the flock on root.
func (s *store) closeDirs() {
	for _, fd := range []int{s.sessionsDir, s.queuesDir, s.root} {
		_ = unix.Close(fd)
	}
}

// check makes sure that the path still leads to our directory. If it was removed, moved or
// replaced, others may be locking in a new one by now: then every session is told that it
// has lost everything, first of all.
func (s *store) check() error {
	if err := sameDir(s.root, s.path); err != nil {
		s.fail(err)
	}
	return s.failure()
}

func (s *store) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// fail tells all sessions and then releases the shared flock on the directory, in this
// order: as long as one of ours believes to hold, no process may find the store unused.
func (s *store) fail(err error) {
	s.mu.Lock()
	if s.failed != nil {
		s.mu.Unlock()
		return
	}
	s.failed = err
	s.mu.Unlock()
	for _, o := range s.all() {
		o.opts.Gone("", err)
	}
	_ = unix.Flock(s.root, unix.LOCK_UN)
}

func (s *store) add(o *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return s.failed
	}
	s.sessions[o.id] = o
	return nil
}

func (s *store) drop(o *session) {
	s.mu.Lock()
	delete(s.sessions, o.id)
	s.mu.Unlock()
}

func (s *store) all() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.sessions))
}

// notify has a ticket look at the queue.
func (p *notifier) notify(who wakeTarget) {
	who.holds = 0
	p.tell(who)
}

func (s *store) wakeAll() {
	for _, o := range s.all() {
		o.wakeAll()
	}
}

func (s *store) session(id sessionID) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

// endedSessions reports which of the sessions have ended. An error says that for some it could
// not be found out.
func (s *store) endedSessions(ids []sessionID) (gone deadSessions, err error) {
	seen := deadSessions{}
	for _, id := range ids {
		if seen[id] || s.session(id) != nil {
			continue
		}
		seen[id] = true
		fd, l, e := s.access.openSessionFile(s.sessionsDir, id)
		switch {
		case e != nil:
			err = e
		case l == alive:
			closeFD(fd)
		case l == ended:
			if gone == nil {
				gone = deadSessions{}
			}
			gone[id] = true
		}
	}
	return gone, err
}

// closeFD closes a descriptor that openSessionFile returned.
func closeFD(fd int) {
	if fd >= 0 {
		_ = unix.Close(fd)
	}
}

// hasEnded reports that a session is known to be dead.
func (s *store) hasEnded(id sessionID) bool {
	gone, _ := s.endedSessions([]sessionID{id})
	return gone[id]
}
