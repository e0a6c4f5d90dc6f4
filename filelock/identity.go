//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// Identity is the device and the inode of the store's directory: the same by every path,
// symbolic link above it or bind mount it is reached, in all containers of a kernel, and
// another one for a copy. An id in a file of the store would be copied with it.
//
// Another machine's directory may have the same numbers. The two are never compared: a process that
// uses both stores would be on both machines.
func (b *backend) Identity(ctx context.Context) (string, error) {
	s, err := b.use(ctx)
	if err != nil {
		return "", err
	}
	defer s.leave()
	var st unix.Stat_t
	if err := unix.Fstat(s.root, &st); err != nil {
		return "", fmt.Errorf("stat %s: %w", s.path, err)
	}
	return fmt.Sprintf("file:%x:%x", uint64(st.Dev), uint64(st.Ino)), nil
}

var _ driver.Identifier = (*backend)(nil)
