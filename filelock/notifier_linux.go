//go:build !hasp_poll

package filelock

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pushes: nothing is polled.
const pushes = true

// notifier carries wake-ups between processes: it reads the pipes of this process's sessions,
// writes into those of others, and watches the sessions that ours wait for. One epoll and
// one goroutine serve all sessions and tickets of a store; the epoll itself is watched by
// Go's netpoller, so that waiting takes no thread.
//
// What it says is a hint, with one exception. A waiter that is woken reads the queue again, so a
// wake-up too many does no harm; that there is never one too few is argued at each place that
// could lose it. The exception is a grant, which is believed: see ticket.granted.
type notifier struct {
	store *store
	epoll *os.File
	efd   int
	done  chan struct{}

	mu       sync.Mutex
	closed   bool
	sessions map[int]*session // by descriptor
	peers    map[sessionID]*peer
	byFD     map[int]*peer
	idle     []*peer // neither watched nor signalled lately, oldest first
	reserve  int     // a descriptor to give away for a signal when the process has no other; -1 if it has been

	events [64]unix.EpollEvent // for the goroutine
	buf    [signalPipeSize]byte
}

func newNotifier(s *store) (*notifier, error) {
	efd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(efd, true) // for os.NewFile to hand it to the netpoller
	}
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	p := &notifier{
		store: s, epoll: os.NewFile(uintptr(efd), "hasp epoll"), efd: efd, done: make(chan struct{}),
		sessions: map[int]*session{}, peers: map[sessionID]*peer{}, byFD: map[int]*peer{}, reserve: -1,
	}
	p.fillReserveLocked()
	conn, err := p.epoll.SyscallConn()
	if err != nil {
		_ = p.epoll.Close()
		return nil, fmt.Errorf("epoll: %w", err)
	}
	go p.run(conn)
	return p, nil
}

func (p *notifier) close() {
	_ = p.epoll.Close()
	<-p.done
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	closeFD(p.reserve)
	for _, o := range p.peers {
		closeFD(o.fd)
	}
	clear(p.peers)
	clear(p.byFD)
	p.idle = nil
}

// run ends with close.
func (p *notifier) run(conn syscall.RawConn) {
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
				// Each pipe has been read empty; what comes from here on is reported to the
				// netpoller, too.
				return false
			}
		}
	})
}

// handle looks at one descriptor. It may have been closed, and even its number used
// again, since the event was taken; the other object then gets a hint it did not need.
// What is read is ours: the number cannot be used again before removeSession has had the mutex.
func (p *notifier) handle(fd int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.byFD[fd]; o != nil {
		p.dropLocked(o)
	}
	if s := p.sessions[fd]; s != nil {
		p.readSignalsLocked(s, fd)
	}
}

// readSignalsLocked reads all signals from a session's pipe, which does not block. A sender that
// finds the pipe full goes away; so if it may have been full, all tickets of the session are woken.
func (p *notifier) readSignalsLocked(s *session, fd int) {
	for {
		n, err := unix.Read(fd, p.buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			return
		}
		if n > len(p.buf)-signalSize {
			s.wakeAll()
			continue
		}
		for b := p.buf[:n]; len(b) >= wordSize; {
			var ticket, holds uint64
			if ticket, holds, b = cutSignal(b); ticket&grantBit == 0 {
				s.wake(ticket, holds)
			}
		}
		return // a read returns all that the pipe has
	}
}

// A signal is the number of a ticket, and behind it, if that is granted, the seq of its entry
// with the topmost bit set, which no number of a ticket has. The kernel writes both as a whole.
const (
	wordSize   = 8
	signalSize = 2 * wordSize // at most
	grantBit   = 1 << 63
)

func appendSignal(b []byte, who wakeTarget) []byte {
	b = le.AppendUint64(b, who.ticket)
	if who.holds != 0 {
		b = le.AppendUint64(b, who.holds|grantBit)
	}
	return b
}

// cutSignal is its inverse. b has a word at least.
func cutSignal(b []byte) (ticket, holds uint64, rest []byte) {
	ticket, b = le.Uint64(b), b[wordSize:]
	if len(b) >= wordSize {
		if w := le.Uint64(b); w&grantBit != 0 {
			return ticket, w &^ grantBit, b[wordSize:]
		}
	}
	return ticket, 0, b
}

// addSession begins to read the pipe of a session.
func (p *notifier) addSession(s *session, fd int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.control(unix.EPOLL_CTL_ADD, fd, unix.EPOLLIN); err != nil {
		return err
	}
	p.sessions[fd] = s
	return nil
}

// removeSession ends reading, and with the descriptor the session.
func (p *notifier) removeSession(fd int) {
	p.mu.Lock()
	delete(p.sessions, fd)
	_ = p.control(unix.EPOLL_CTL_DEL, fd, 0)
	p.mu.Unlock()
	closeFD(fd)
}

func (p *notifier) control(op, fd int, events uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(fd)}
	if err := unix.EpollCtl(p.efd, op, fd, &ev); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// tell signals a ticket of another session. If it fails, the session is dead (ENXIO, EPIPE), or has
// as many signals to read as fit (see readSignalsLocked), or we have no descriptor, and other parts
// of the process have taken each that we have just given away: then the ticket's own slow check has
// to do, unless our death comes first, of which it is told.
//
// The reserve is filled after every signal, and not only after the one that has used it: there it
// fails if another part of the process takes the descriptor first, and when the store was opened
// there may have been none. The next shortage may come days later. While the reserve is full, this
// is no system call.
func (p *notifier) tell(who wakeTarget) {
	if s := p.store.session(who.session); s != nil {
		s.wake(who.ticket, who.holds)
		return
	}
	var room [signalSize]byte
	b := appendSignal(room[:0], who)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.fillReserveLocked()
	o, l, err := p.peerLocked(who.session)
	for (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) && p.giveAwayLocked() { // each is given away once
		o, l, err = p.peerLocked(who.session)
	}
	if err != nil || l != alive {
		return
	}
	if _, err := unix.Write(o.fd, b); err == unix.EPIPE || p.reserve < 0 && len(o.waiting) == 0 {
		p.dropLocked(o)
		return
	}
	p.setIdleLocked(o)
}

// watch has the waiter signalled when one of the sessions dies, instead of those it
// watched before. It reports those that have died already. retry is when to look again,
// 0 if everything is watched; an error says why it is not.
//
// A session that dies after it was looked up is reported by epoll, however late it was
// added there: EPOLLERR is a state, not an edge.
func (p *notifier) watch(w *waiter, ids []sessionID) (gone deadSessions, retry time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := w.peers
	w.peers = nil
	if w.left.Load() {
		ids = nil // Leave has overtaken us; what we added now would stay
	}
	for _, id := range ids {
		if gone[id] || p.store.session(id) != nil {
			continue // our own do not die without us, and when closed they signal
		}
		o, l, e := p.peerLocked(id)
		switch {
		case e != nil:
			retry, err = blindRetry, e
		case l == ended:
			if gone == nil {
				gone = deadSessions{}
			}
			gone[id] = true
		case l == missing:
			retry, err = blindRetry, &missingError{p.store.path, id}
		default:
			o.waiting[w] = struct{}{}
			if !slices.Contains(w.peers, o) {
				w.peers = append(w.peers, o)
			}
		}
	}
	p.leaveLocked(w, before, w.peers)
	return gone, retry, err
}

// unwatch ends what watch began.
func (p *notifier) unwatch(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leaveLocked(w, w.peers, nil)
	w.peers = nil
}

// leaveLocked takes a waiter off those it watched before and does not watch now.
func (p *notifier) leaveLocked(w *waiter, before, now []*peer) {
	for _, o := range before {
		if !slices.Contains(now, o) {
			delete(o.waiting, w)
			p.setIdleLocked(o)
		}
	}
}
