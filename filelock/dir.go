//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/fstype"
)

// attach opens the store in a directory, and makes one there if there is none.
//
// A flock on the directory says which processes use it. Each has it shared, for as long as the
// process may hold a lock; a process that gets it exclusively is alone, and may therefore make,
// repair and tidy all that is below: with no user there is no holder whose lock could be granted to
// another. A process that is not alone finds the store as it must be, or refuses: files that are
// missing then were removed under a process that may hold.
//
// The flock is on the directory and not on a file in it, because it outlives all that
// happens to the files: after rm -rf dir/* a new process still meets it.
func attach(ctx context.Context, path string, o *Options) (*store, error) {
	root, a, err := openRoot(path, o)
	if err != nil {
		return nil, err
	}
	queues, lives, err := acquireSame(ctx, root, path, a)
	if err != nil {
		_ = unix.Close(root)
		return nil, err
	}
	return newStore(path, root, queues, lives, a.access)
}

// acquireSame is acquireShared for the directory that is still at path in the end: it may have been
// moved while we waited, and a lock on it says nothing about the one that is there now.
func acquireSame(ctx context.Context, root int, path string, a opened) (queues, lives int, err error) {
	queues, lives, err = acquireShared(ctx, root, path, a)
	if err != nil {
		return 0, 0, err
	}
	if err := sameDir(root, path); err != nil {
		_ = unix.Close(queues)
		_ = unix.Close(lives)
		return 0, 0, err
	}
	return queues, lives, nil
}

// opened is how a directory may be used.
type opened struct {
	access
	asked bool // Options say for whom it is
}

// openRoot opens the directory and refuses one that is not safe.
func openRoot(path string, o *Options) (fd int, a opened, err error) {
	w, err := o.wanted()
	if err != nil {
		return -1, a, err
	}
	if err := w.make(path); err != nil {
		return -1, a, explain(path, err)
	}
	fd, st, err := openDirStat(unix.AT_FDCWD, path)
	if err != nil {
		return -1, a, explain(path, err)
	}
	a.asked = w.mode != 0
	if err = w.accept(path, &st); err == nil {
		a.access, err = accessOf(&st)
	}
	if err != nil {
		err = explain(path, err)
	} else {
		err = checkFS(fd, path, o)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, a, err
	}
	return fd, a, nil
}

// checkFS refuses a file system that is not this machine's own: a named pipe connects no two
// kernels, so each machine would take the other's holders for dead. One that is not known
// is accepted, and Diagnose points at it.
func checkFS(fd int, path string, o *Options) error {
	fs, err := fstype.Of(fd)
	if err != nil {
		return fmt.Errorf("statfs %s: %w", path, err)
	}
	hint := "use a directory on a local disk or tmpfs, or a store with a server"
	switch fs.Kind {
	case fstype.FUSE:
		if o.AllowFUSE {
			return nil
		}
		hint = "if it is local, allow it with Options.AllowFUSE or allow_fuse=true"
	case fstype.Networked:
	default:
		return nil
	}
	return fmt.Errorf("%w: %s is on a %s file system, where locks do not exclude other machines; %s",
		driver.ErrInvalid, path, fs.Name, hint)
}

// explain adds the meaning of the usual errors here.
func explain(path string, err error) error {
	what := ""
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EMLINK):
		what = " (a store must be a directory, and not a symbolic link to one)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		what = denied(path)
	}
	return fmt.Errorf("store directory %s: %w%s", path, err, what)
}

// incompleteTries is how often a store is found to lack something before that is called damage: for
// about 60 ms. Tests try for longer.
var incompleteTries = 50

// acquireShared gets the shared flock, by way of the exclusive one if no other process has any.
//
// If the exclusive one is refused and the shared one is not, others use the store. Or one has just
// let go that had the exclusive lock and has not prepared the store: it was killed, or it is
// another program. Then something may be missing, which is damage only if others do use it: their
// locks stay, and the exclusive one is refused each time.
func acquireShared(ctx context.Context, root int, path string, a opened) (queues, lives int, err error) {
	for tries := 0; ; {
		if err := ctx.Err(); err != nil {
			return 0, 0, fmt.Errorf("%w while waiting for another process that prepares the store in %s, or holds a flock on it", err, path)
		}
		err = unix.EWOULDBLOCK // one that only looks prepares nothing
		if !a.look {
			err = unix.Flock(root, unix.LOCK_EX|unix.LOCK_NB)
		}
		switch err {
		case nil:
			if err := prepare(root, path, a); err != nil {
				return 0, 0, err
			}
		case unix.EWOULDBLOCK, unix.EINTR:
		default:
			return 0, 0, fmt.Errorf("flock on %s: %w", path, err)
		}
		// Turning the exclusive lock into a shared one releases it in between. If another process
		// gets it there, it prepares the store again, to the same end.
		switch err := unix.Flock(root, unix.LOCK_SH|unix.LOCK_NB); err {
		case nil:
			queues, lives, err = openParts(root, path, a.access)
			damage := new(damageError)
			if tries++; !errors.As(err, &damage) || tries == incompleteTries {
				return queues, lives, err
			}
			_ = unix.Flock(root, unix.LOCK_UN) // without it, two that find the store so would keep each other from preparing it
			sleepBriefly(time.Duration(min(tries, 50)) * rand.N(100*time.Microsecond))
		case unix.EWOULDBLOCK, unix.EINTR:
			sleepBriefly(time.Millisecond)
		default:
			return 0, 0, fmt.Errorf("flock on %s: %w", path, err)
		}
	}
}

// openParts opens the subdirectories of a store that others may be using.
func openParts(root int, path string, a access) (queues, lives int, err error) {
	found, err := a.readFormat(root)
	if err == nil && found == "" {
		err = unix.ENOENT
	}
	if err == nil {
		err = checkFormat(path, found)
	}
	if err == nil {
		if queues, err = a.openDir(root, queuesDirName); err == nil {
			if lives, err = a.openDir(root, sessionsDirName); err == nil {
				return queues, lives, nil
			}
			_ = unix.Close(queues)
		}
	}
	if errors.Is(err, unix.ENOENT) && a.look {
		return 0, 0, fmt.Errorf("%w: %s belongs to uid %d and this process runs as uid 0, which only looks at it; it has no complete store",
			driver.ErrInvalid, path, a.uid)
	}
	if errors.Is(err, unix.ENOENT) {
		return 0, 0, &damageError{file: path, what: "files were removed while other processes use it"}
	}
	return 0, 0, explain(path, err)
}

// sameDir makes sure that a path leads to the directory that is open as fd.
func sameDir(fd int, path string) error {
	var here, there unix.Stat_t
	if err := unix.Fstat(fd, &here); err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	err := unix.Fstatat(unix.AT_FDCWD, path, &there, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && here.Dev == there.Dev && here.Ino == there.Ino:
		return nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EINTR):
		// A directory above was closed to us. That does not open another store.
		return nil
	}
	return fmt.Errorf("%w: the store directory %s was removed, moved or replaced", driver.ErrGone, path)
}
