//go:build linux || darwin || freebsd

package filefence

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/fstype"
)

// checkFS refuses a directory that other machines may share. Their flock depends at best on mount
// options (nfs with local_lock=flock excludes no other machine), and then two of them compare with
// one sidecar at once. The file system behind FUSE cannot be determined, and is accepted.
func checkFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	fs, err := fstype.Of(int(d.Fd()))
	if err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	return checkKind(dir, fs)
}

func checkKind(dir string, fs fstype.Info) error {
	if fs.Kind != fstype.Networked {
		return nil
	}
	return fmt.Errorf("%w: %s is on a %s file system, where flock does not exclude other machines; use a local disk, or let the data's own store compare tokens",
		fencing.ErrInvalid, dir, fs.Name)
}

// openSidecar opens the sidecar and takes its flock, which ends with the file or the process.
//
// A waiting flock call cannot be ended, so this polls. The flock is held for a few synced writes,
// milliseconds in all. A process that is stopped in between keeps it, so waiting has a bound beside
// ctx: hasp fence and most programs set none in ctx.
func openSidecar(ctx context.Context, path string, patience time.Duration) (*sidecar, error) {
	file, err := openPrivate(path)
	if err != nil {
		return nil, err
	}
	s := &sidecar{file}
	over := time.Now().Add(patience)
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		err := ctx.Err()
		if err == nil {
			err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		switch {
		case err == nil:
			return s, s.current(path)
		case errors.Is(err, syscall.EWOULDBLOCK) && time.Now().After(over):
			s.close()
			return nil, fmt.Errorf("%w: %s has been locked for %s (lsof shows by whom: it may be stopped)", ErrBlocked, path, patience)
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			s.close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// openPrivate opens the sidecar, or makes it, so that only users that can also replace the file can
// take its flock. flock needs no more than a descriptor: read access is enough for it.
func openPrivate(path string) (*os.File, error) {
	for {
		file, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		// Private first and open to others afterwards: in the other order another user could open
		// it in between, and keep it. A user that shares the directory and comes in between is
		// refused, and has written nothing.
		file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		if err == nil {
			return file, share(file, filepath.Dir(path))
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		// Another process has just created it.
	}
}

// share opens a new sidecar to the users that may write in its directory, and so could replace the
// file without this package. It follows the directory's mode and not the file's: the file need not
// exist yet, and its mode says which users may read and write it, not which may replace it. In a
// sticky directory (as /tmp) no user may replace another's file.
func share(file *os.File, dir string) error {
	d, err := os.Stat(dir)
	if err == nil && d.Mode()&fs.ModeSticky == 0 && d.Mode()&0o022 != 0 {
		mode := 0o600 | d.Mode()&0o022 | (d.Mode()&0o022)<<1
		if mode&0o060 != 0 && file.Chown(-1, int(d.Sys().(*syscall.Stat_t).Gid)) != nil {
			mode &^= 0o060 // our group is not the directory's: it has other members
		}
		err = file.Chmod(mode)
	}
	if err != nil {
		_ = file.Close()
	}
	return err
}

// current refuses a sidecar that was removed during the wait for its flock: another process would
// create a new one, and both would write.
func (s *sidecar) current(path string) error {
	there, err := os.Lstat(path)
	if err == nil {
		var ours fs.FileInfo
		if ours, err = s.file.Stat(); err == nil && !os.SameFile(ours, there) {
			err = errors.New("it was replaced by another file")
		}
	}
	if err != nil {
		s.close()
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
