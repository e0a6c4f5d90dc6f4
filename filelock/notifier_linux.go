//go:build !hasp_poll

package filelock

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pushes: nobody polls.
const pushes = true

// post carries wake-ups between processes: it reads the bells of this process's sessions,
// rings those of others, and watches the lives of those that ours wait for. One epoll and
// one goroutine serve all sessions and tickets of a store; the epoll itself is watched by
// Go's netpoller, so that waiting takes no thread.
//
// Everything it says is a hint. Whoever is woken reads the queue again, so a wake-up too
// many does no harm; that there is never one too few is argued at each place that could
// lose it.
type post struct {
	store *store
	epoll *os.File
	efd   int
	done  chan struct{}

	mu     sync.Mutex
	closed bool
	bells  map[int]*session // by descriptor
	peers  map[sessionID]*peer
	byFD   map[int]*peer
	idle   []*peer // neither watched nor rung lately, oldest first

	changes *changes // in queue files, for Watch; nil when nobody asks

	events [64]unix.EpollEvent // for the goroutine
	buf    [bellSize]byte
}

// peer is another process's session that we watch or have rung. Its descriptor is kept
// for a while after: whoever is before or behind us in a queue often is again next time.
// Its death, of which epoll tells, closes it.
type peer struct {
	id      sessionID
	fd      int
	idle    bool
	waiting map[*waiter]struct{}
}

// watches are the peers that a waiter waits for.
type watches []*peer

// maxIdle bounds the descriptors that are kept for later.
const maxIdle = 32

func newPost(s *store) (*post, error) {
	efd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(efd, true) // for os.NewFile to hand it to the netpoller
	}
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &post{
		store: s, epoll: os.NewFile(uintptr(efd), "hasp epoll"), efd: efd, done: make(chan struct{}),
		bells: map[int]*session{}, peers: map[sessionID]*peer{}, byFD: map[int]*peer{},
	}
	conn, err := p.epoll.SyscallConn()
	if err != nil {
		_ = p.epoll.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	go p.run(conn)
	return p, nil
}

func (p *post) close() {
	_ = p.epoll.Close()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, o := range p.peers {
		hangUp(o.fd)
	}
	clear(p.peers)
	clear(p.byFD)
	p.idle = nil
}

// run ends with close.
func (p *post) run(conn syscall.RawConn) {
	defer close(p.done)
	_ = conn.Read(func(uintptr) bool {
		for {
			n, err := unix.EpollWait(p.efd, p.events[:], 0)
			if err == unix.EINTR {
				continue
			}
			for i := range max(n, 0) {
				p.handle(int(p.events[i].Fd))
			}
			if n < len(p.events) {
				// Each bell has been read empty; what comes from here on is news to the
				// netpoller, too.
				return false
			}
		}
	})
}

// handle looks at one descriptor. It may have been closed, and even its number used
// again, since the event was taken; the other object then gets a hint it did not need.
func (p *post) handle(fd int) {
	p.mu.Lock()
	bell := p.bells[fd]
	if o := p.byFD[fd]; o != nil {
		p.dropLocked(o)
	}
	if c := p.changes; c != nil && c.fd == fd {
		c.read(p.buf[:])
	}
	p.mu.Unlock()
	if bell != nil {
		p.listen(bell, fd)
	}
}

// listen reads all that a bell has been rung with. A ringer who finds the pipe full goes
// away; so if it may have been full, everybody is woken.
func (p *post) listen(s *session, fd int) {
	for {
		n, err := unix.Read(fd, p.buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		if n > len(p.buf)-ringSize {
			s.wakeAll()
			continue
		}
		for b := p.buf[:n]; len(b) >= ringSize; b = b[ringSize:] {
			s.wake(le.Uint64(b))
		}
		return // a pipe gives all it has
	}
}

// ringSize is the size of a message: the number of a ticket. The kernel writes it whole.
const ringSize = 8

// addBell begins to listen for a session.
func (p *post) addBell(s *session, fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
		return err
	}
	p.bells[fd] = s
	return nil
}

// dropBell ends listening, and with the descriptor the session's life.
func (p *post) dropBell(fd int) {
	p.mu.Lock()
	delete(p.bells, fd)
	_ = p.control(unix.EPOLL_CTL_DEL, fd, 0)
	p.mu.Unlock()
	hangUp(fd)
}

func (p *post) control(op, fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(p.efd, op, fd, &ev); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// ring wakes a ticket of another session. If it fails, the session is dead (ENXIO, EPIPE),
// or has as many rings to read as fit (see listen), or we have no descriptor to spare: then
// the ticket's own slow check has to do, unless our death comes first, of which it is told.
func (p *post) ring(who party) {
	if s := p.store.session(who.session); s != nil {
		s.wake(who.ticket)
		return
	}
	var b [ringSize]byte
	le.PutUint64(b[:], who.ticket)
	p.mu.Lock()
	defer p.mu.Unlock()
	o, l, err := p.peerLocked(who.session)
	if err != nil || l != alive {
		return
	}
	if _, err := unix.Write(o.fd, b[:]); err == unix.EPIPE {
		p.dropLocked(o)
		return
	}
	p.restLocked(o)
}

// watch has the waiter signalled when one of the sessions dies, instead of those it
// watched before. It reports those that have died already. retry is when to look again,
// 0 if everything is watched; an error says why it is not.
//
// A session that dies after it was looked up is reported by epoll, however late it was
// added there: EPOLLERR is a state, not an edge.
func (p *post) watch(w *waiter, ids []sessionID) (gone dead, retry time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := w.watches
	w.watches = nil
	if w.left.Load() {
		ids = nil // Leave has overtaken us; what we added now, nobody would take away
	}
	for _, id := range ids {
		if gone[id] || p.store.session(id) != nil {
			continue // our own do not die without us, and when closed they ring
		}
		o, l, e := p.peerLocked(id)
		switch {
		case e != nil:
			retry, err = blindRetry, e
		case l == ended:
			if gone == nil {
				gone = dead{}
			}
			gone[id] = true
		case l == missing:
			retry, err = blindRetry, &missingError{p.store.path, id}
		default:
			o.waiting[w] = struct{}{}
			if !slices.Contains(w.watches, o) {
				w.watches = append(w.watches, o)
			}
		}
	}
	p.leaveLocked(w, before, w.watches)
	return gone, retry, err
}

// unwatch ends what watch began.
func (p *post) unwatch(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(w, w.watches, nil)
	w.watches = nil
}

// leaveLocked takes a waiter off those it watched before and does not watch now.
func (p *post) leaveLocked(w *waiter, before, now []*peer) {
	for _, o := range before {
		if !slices.Contains(now, o) {
			delete(o.waiting, w)
			p.restLocked(o)
		}
	}
}

// peerLocked returns a session of another process, known or by knocking.
func (p *post) peerLocked(id sessionID) (*peer, life, error) {
	if o := p.peers[id]; o != nil {
		return o, alive, nil
	}
	if p.closed { // by a call that Close has overtaken; the descriptors may be others' by now
		return nil, missing, errStoreClosed
	}
	fd, l, err := knock(p.store.lives, id)
	if err != nil || l != alive {
		return nil, l, err
	}
	if err := p.control(unix.EPOLL_CTL_ADD, fd, 0); err != nil { // EPOLLERR needs no asking
		hangUp(fd)
		return nil, missing, err
	}
	o := &peer{id: id, fd: fd, waiting: map[*waiter]struct{}{}}
	p.peers[id], p.byFD[fd] = o, o
	return o, alive, nil
}

// restLocked puts a peer that nobody waits for on the list of those to be closed some time.
func (p *post) restLocked(o *peer) {
	if o.idle || len(o.waiting) > 0 || p.peers[o.id] != o {
		return
	}
	o.idle = true
	p.idle = append(p.idle, o)
	for len(p.idle) > maxIdle {
		oldest := p.idle[0]
		p.idle = p.idle[1:]
		oldest.idle = false
		if len(oldest.waiting) == 0 {
			p.dropLocked(oldest)
		}
	}
}

// dropLocked forgets a peer. It signals those who wait for it, since closing the
// descriptor takes it out of the epoll, and with it what that would have reported.
// Whoever still needs it opens it again, and learns for sure what has become of it.
func (p *post) dropLocked(o *peer) {
	if p.peers[o.id] != o {
		return
	}
	delete(p.peers, o.id)
	delete(p.byFD, o.fd)
	hangUp(o.fd)
	for w := range o.waiting {
		w.bell.Ring()
	}
}
