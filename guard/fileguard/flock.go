//go:build linux || darwin || freebsd

package fileguard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/hasplock/hasp/guard"
	"github.com/hasplock/hasp/internal/fstype"
)

// checkFS refuses a directory that other machines may share. Their flock is at best a matter of
// mount options (nfs with local_lock=flock excludes nobody), and then two of them compare with
// one sidecar at once. A FUSE file system cannot be judged, and is let pass.
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
	return judgeFS(dir, fs)
}

func judgeFS(dir string, fs fstype.Info) error {
	if fs.Kind != fstype.Networked {
		return nil
	}
	return fmt.Errorf("%w: %s is on a %s file system, where flock does not exclude other machines; use a local disk, or let the data's own store compare tokens",
		guard.ErrInvalid, dir, fs.Name)
}

// openSidecar opens the sidecar and takes its flock, which ends with the file or the process.
//
// flock cannot be told to stop waiting, so it is asked for again and again. It is held for a
// few synced writes, milliseconds in all.
func openSidecar(ctx context.Context, path string) (*sidecar, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o666)
	if err != nil {
		return nil, err
	}
	s := &sidecar{file}
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		err := ctx.Err()
		if err == nil {
			err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		}
		switch {
		case err == nil:
			return s, s.current(path)
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

// current refuses a sidecar that was removed while we waited for its flock: another process
// would make a new one, and both of us would write.
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
