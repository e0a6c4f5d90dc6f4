//go:build darwin || freebsd

package filelock

import (
	"time"

	"golang.org/x/sys/unix"
)

func sleepBriefly(d time.Duration) { time.Sleep(d) }

// touch sets a file's time to now.
func touch(dir int, name string) error {
	now := unix.NsecToTimespec(time.Now().UnixNano())
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW)
}

// yieldCPU does nothing: no other process was woken.
func yieldCPU() {}

// renameNew renames a directory. An empty one that another process has just made is replaced:
// that process finds its directory replaced, and says so.
func renameNew(from, to string) error { return unix.Rename(from, to) }
