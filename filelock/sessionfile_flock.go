//go:build darwin || freebsd || (linux && hasp_poll)

package filelock

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A session's file is a regular file that its process keeps under flock. The kernel drops
// that when the process dies, however it dies, and not before. Nothing announces it here:
// a named pipe would, as on Linux, but what these kernels tell kqueue of one has too many
// exceptions (Go does not use it for pipes on darwin), and so it is polled for.

// sessionOthersMay lets other users open the file, for a flock.
const sessionOthersMay = 0o4

// openAnyones opens a session's file, whose maker in a store for all users may be anybody.
func (a access) openAnyones(dir int, name string) (int, error) {
	if a.kind == allUsers {
		a.kind = oneGroup
	}
	return a.openFile(dir, name, unix.O_RDONLY)
}

// newSessionFile makes a session's file, locked from the moment it has its name: in between it
// would look dead, and be swept away.
func (a access) newSessionFile(dir int, id sessionID) (fd int, err error) {
	fresh := freshPrefix + id.String()
	fd, err = a.openFile(dir, fresh, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err == nil {
		if a.kind != oneUser {
			err = unix.Fchmod(fd, a.sessionMode())
		}
		if err == nil {
			err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}
		if err == nil {
			if err = unix.Renameat(dir, fresh, dir, id.String()); err == nil {
				return fd, nil
			}
		}
		_ = unix.Close(fd)
		_ = unix.Unlinkat(dir, fresh, 0)
	}
	return -1, fmt.Errorf("make session file: %w", err)
}

// openSessionFile tells whether a session lives. The descriptor is valid iff it does.
func (a access) openSessionFile(dir int, id sessionID) (int, sessionState, error) {
	fd, err := a.openAnyones(dir, id.String())
	if errors.Is(err, unix.ENOENT) {
		return -1, missing, nil
	}
	if err != nil {
		return -1, missing, fmt.Errorf("open session file %s: %w", id, err)
	}
	// A shared lock, so that two that ask do not take each other for the owner.
	err = unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return fd, alive, nil
	}
	_ = unix.Close(fd)
	if err != nil {
		return -1, missing, fmt.Errorf("flock session file %s: %w", id, err)
	}
	return -1, ended, nil
}
