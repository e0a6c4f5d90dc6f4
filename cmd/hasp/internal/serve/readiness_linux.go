package serve

import (
	"errors"
	"os"
	"syscall"
)

// readiness tells when a socket has something to read, by epoll(7), so that no goroutine with a stack reads each connection that nothing
// comes from: net does so with one epoll for all, but only for a Read that waits.
type readiness struct {
	epoll *os.File // which is in net's own epoll
	raw   syscall.RawConn
}

// newReadiness calls tell, on one goroutine and until close, for each socket that is watched and has something to read, or has ended.
func newReadiness(tell func(id uint64)) (*readiness, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // else os.NewFile takes it for a file
		return nil, errors.Join(err, syscall.Close(fd))
	}
	r := &readiness{epoll: os.NewFile(uintptr(fd), "epoll")}
	if r.raw, err = r.epoll.SyscallConn(); err != nil {
		return nil, errors.Join(err, r.epoll.Close())
	}
	go r.run(tell)
	return r, nil
}

func (r *readiness) run(tell func(id uint64)) {
	events := make([]syscall.EpollEvent, 64)
	for {
		n := 0
		err := r.raw.Read(func(fd uintptr) (done bool) {
			var err error
			n, err = syscall.EpollWait(int(fd), events, 0)
			return n > 0 || err != nil && !errors.Is(err, syscall.EINTR)
		})
		if err != nil || n < 0 {
			return // it is closed
		}
		for _, e := range events[:n] {
			tell(uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32)
		}
	}
}

// watch has a socket told once, with an id: the system's number may be another socket's by then. A socket that is closed is forgotten.
// It reports false where that is not possible, and nothing will be told.
func (r *readiness) watch(socket syscall.Conn, id uint64) bool {
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	event := syscall.EpollEvent{Events: syscall.EPOLLIN | syscall.EPOLLRDHUP | syscall.EPOLLONESHOT, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
	var failed error
	outer := raw.Control(func(fd uintptr) {
		inner := r.raw.Control(func(epoll uintptr) {
			// A socket that was watched before is in the epoll still.
			if failed = syscall.EpollCtl(int(epoll), syscall.EPOLL_CTL_MOD, int(fd), &event); errors.Is(failed, syscall.ENOENT) {
				failed = syscall.EpollCtl(int(epoll), syscall.EPOLL_CTL_ADD, int(fd), &event)
			}
		})
		failed = errors.Join(failed, inner)
	})
	return outer == nil && failed == nil
}

func (r *readiness) close() { _ = r.epoll.Close() }
