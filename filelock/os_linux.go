package filelock

import (
	"time"

	"golang.org/x/sys/unix"
)

// nap sleeps for microseconds. Go's timers round up to a millisecond when a process is
// otherwise idle, which is a thousand critical sections.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // waking early is as good
}

// touch sets a file's time to now.
func touch(dir int, name string) error {
	return unix.UtimesNanoAt(dir, name, []unix.Timespec{
		{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_NOW},
	}, unix.AT_SYMLINK_NOFOLLOW)
}
