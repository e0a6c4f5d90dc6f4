//go:build !hasp_poll

package filelock

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A session's file is a named pipe whose read end its process keeps open, and no other
// process ever opens. The kernel closes that end when the process dies, however it dies, and
// not before: a stopped process keeps it. So
//
//   - opening the write end tells whether the session lives (else ENXIO),
//   - a process that keeps it open is told of the death at once (EPOLLERR),
//   - what is written into it wakes the session: it also carries the signals.
//
// The road not taken is a flock on a regular file. It proves life as well, but a death
// could only be awaited by a blocked thread or by polling, and signals would have to be
// inotify watches, of which a user may have 128. docs/backends/file.md has the numbers.

// signalPipeSize is the room in the pipe: as small as possible, since a user may have 16384
// pages in all pipes together before the kernel limits new ones.
const signalPipeSize = 4096

// sessionOthersMay lets other users write to the file.
const sessionOthersMay = 0o2

// newSessionFile makes a session's file, alive from the moment it has its name: in between it
// would look dead, and be swept away.
func (a access) newSessionFile(dir int, id sessionID) (fd int, err error) {
	fresh := freshPrefix + id.String()
	if err := unix.Mkfifoat(dir, fresh, 0o600); err != nil {
		return -1, fmt.Errorf("make session file: %w", err)
	}
	// A umask may have taken the owner's permission to open it. Of a pipe in a directory where
	// others may write, only newer kernels change the mode without following a link that they have
	// put there.
	follow := 0
	if a.kind != oneUser {
		follow = unix.AT_SYMLINK_NOFOLLOW
	}
	_ = unix.Fchmodat(dir, fresh, 0o600, follow) // without success, the next call says so
	fd, err = a.openPipe(dir, fresh, unix.O_RDWR)
	if err == nil {
		// A kernel that cannot shrink it leaves it larger: harmless, see
		// notifier.readSignalsLocked.
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, signalPipeSize)
		if a.kind != oneUser {
			err = unix.Fchmod(fd, a.sessionMode()) // under every umask
		}
		if err == nil {
			err = unix.Renameat(dir, fresh, dir, id.String())
		}
		if err == nil {
			return fd, nil
		}
		_ = unix.Close(fd)
	}
	_ = unix.Unlinkat(dir, fresh, 0)
	return -1, fmt.Errorf("open session file: %w", err)
}

// openSessionFile opens the pipe of a session, which tells whether it lives. The descriptor is
// valid iff it does. An error says that it could not be found out.
func (a access) openSessionFile(dir int, id sessionID) (int, sessionState, error) {
	fd, err := a.openPipe(dir, id.String(), unix.O_WRONLY)
	switch {
	case err == nil:
		return fd, alive, nil
	case errors.Is(err, unix.ENXIO):
		return -1, ended, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, errNotPipe):
		return -1, missing, nil
	}
	return -1, missing, fmt.Errorf("open session file %s: %w", id, err)
}

var errNotPipe = errors.New("not a pipe of ours")

func (a access) openPipe(dir int, name string, how int) (int, error) {
	fd, err := openat(dir, name, how|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO || a.kind != allUsers && !a.owns(&st) {
		_ = unix.Close(fd)
		return -1, errNotPipe
	}
	return fd, nil
}
