//go:build !hasp_poll

package filelock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// fileChanges reports writes to queue files by inotify. A user may have 128 instances in all,
// so a store has one for all its watches, and none while nothing is watched; no wake-up of
// a lock depends on it.
type fileChanges struct {
	fd    int
	files map[int]int32 // watch descriptors by number of the file
	users map[int32]map[*waiter]struct{}
}

// watchFile has the waiter signalled when a queue file is written to, until stop is
// called. poll is not 0 if that is not possible, and says how often to look instead.
func (p *notifier) watchFile(w *waiter, n int) (poll time.Duration, stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.openChangesLocked(); err != nil {
		return watchPoll, func() {}
	}
	c := p.changes
	wd, ok := c.files[n]
	if !ok {
		d, err := unix.InotifyAddWatch(c.fd, fmt.Sprintf("%s/%s/%02x", p.store.path, queuesDirName, n), unix.IN_MODIFY)
		if err != nil {
			p.closeChangesLocked()
			return watchPoll, func() {}
		}
		wd = int32(d)
		c.files[n], c.users[wd] = wd, map[*waiter]struct{}{}
	}
	c.users[wd][w] = struct{}{}
	return 0, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(c.users[wd], w)
		if len(c.users[wd]) == 0 {
			_, _ = unix.InotifyRmWatch(c.fd, uint32(wd))
			delete(c.users, wd)
			delete(c.files, n)
		}
		p.closeChangesLocked()
	}
}

func (p *notifier) openChangesLocked() error {
	if p.changes != nil {
		return nil
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return err
	}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
		_ = unix.Close(fd)
		return err
	}
	p.changes = &fileChanges{fd: fd, files: map[int]int32{}, users: map[int32]map[*waiter]struct{}{}}
	return nil
}

// closeChangesLocked closes the instance if nothing is watched.
func (p *notifier) closeChangesLocked() {
	if c := p.changes; c != nil && len(c.users) == 0 {
		_ = unix.Close(c.fd)
		p.changes = nil
	}
}

// read signals the waiters that the pending events concern. Too many events for the kernel to keep
// concern all of them.
func (c *fileChanges) read(buf []byte) {
	for {
		n, err := unix.Read(c.fd, buf)
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			wd, mask, size := int32(le.Uint32(b)), le.Uint32(b[4:]), int(le.Uint32(b[12:]))
			for d, users := range c.users {
				if d == wd || mask&unix.IN_Q_OVERFLOW != 0 {
					for w := range users {
						w.signal.Notify()
					}
				}
			}
			b = b[min(unix.SizeofInotifyEvent+size, len(b)):]
		}
	}
}
