//go:build !hasp_poll

package filelock

import "golang.org/x/sys/unix"

// peer is another process's session that we watch or have signalled. Its descriptor is kept
// for a while after: a session that is before or behind us in a queue often is again next time.
// Its death, which epoll reports, closes it.
type peer struct {
	id      sessionID
	fd      int
	idle    bool
	waiting map[*waiter]struct{}
}

// peerWatches are the peers that a waiter waits for.
type peerWatches []*peer

// maxIdle bounds the descriptors that are kept for later.
const maxIdle = 32

// peerLocked returns a session of another process, a known one or one whose file it opens.
func (p *notifier) peerLocked(id sessionID) (*peer, sessionState, error) {
	if o := p.peers[id]; o != nil {
		return o, alive, nil
	}
	if p.closed { // by a call that Close has overtaken; the descriptors may be others' by now
		return nil, missing, errStoreClosed
	}
	fd, l, err := p.store.access.openSessionFile(p.store.sessionsDir, id)
	if err != nil || l != alive {
		return nil, l, err
	}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, 0); err != nil { // EPOLLERR needs no asking
		closeFD(fd)
		return nil, missing, err
	}
	o := &peer{id: id, fd: fd, waiting: map[*waiter]struct{}{}}
	p.peers[id], p.byFD[fd] = o, o
	return o, alive, nil
}

// setIdleLocked puts a peer without waiters on the list of those to be closed some time.
func (p *notifier) setIdleLocked(o *peer) {
	if o.idle || len(o.waiting) > 0 || p.peers[o.id] != o {
		return
	}
	o.idle = true
	p.idle = append(p.idle, o)
	for len(p.idle) > maxIdle {
		p.dropIdleLocked()
	}
}

// dropIdleLocked takes the oldest off the list, and reports whether it was idle still, and so has
// been closed.
func (p *notifier) dropIdleLocked() bool {
	oldest := p.idle[0]
	p.idle = p.idle[1:]
	oldest.idle = false
	known := p.peers[oldest.id] == oldest
	if len(oldest.waiting) > 0 || !known {
		return false
	}
	p.dropLocked(oldest)
	return true
}

// dropLocked forgets a peer. It signals those that wait for it, since closing the
// descriptor takes it out of the epoll, and with it what that would have reported.
// A waiter that still needs it opens it again, and learns for sure whether it lives.
func (p *notifier) dropLocked(o *peer) {
	if p.peers[o.id] != o {
		return
	}
	delete(p.peers, o.id)
	delete(p.byFD, o.fd)
	closeFD(o.fd)
	for w := range o.waiting {
		w.signal.Notify()
	}
}

// giveAwayLocked closes a descriptor that we can do without: of an idle peer, or the reserve.
func (p *notifier) giveAwayLocked() bool {
	for len(p.idle) > 0 {
		if p.dropIdleLocked() {
			return true
		}
	}
	had := p.reserve >= 0
	closeFD(p.reserve)
	p.reserve = -1
	return had
}

// fillReserveLocked has a descriptor in reserve again, if there is one.
func (p *notifier) fillReserveLocked() {
	if p.reserve < 0 && !p.closed {
		p.reserve, _ = unix.FcntlInt(uintptr(p.store.sessionsDir), unix.F_DUPFD_CLOEXEC, 0) // -1 if there is none
	}
}
