//go:build darwin || freebsd

package filelock

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// checkFS goes by the kernel's own word on whether a file system is local.
func checkFS(fd int, path string, o *Options) error {
	name, local, _, _, err := examineFS(fd)
	if err != nil {
		return fmt.Errorf("statfs %s: %w", path, err)
	}
	if !classify(name, local, o.AllowFUSE) {
		return fmt.Errorf("%w: %s is on a %s file system, where locks do not exclude other machines; "+
			"use a local disk, or a store with a server (a local FUSE file system: Options.AllowFUSE or allowfuse=true)",
			driver.ErrInvalid, path, name)
	}
	return nil
}

// classify says whether a store may be on a file system. FUSE claims to be local whatever
// is behind it.
func classify(name string, local, allowFUSE bool) bool {
	if strings.Contains(name, "fuse") {
		return allowFUSE
	}
	return local
}

// examineFS is for Diagnose, too.
func examineFS(fd int) (name string, known bool, space, inodes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", false, 0, 0, err
	}
	name, flags := fsName(&st)
	return name, flags&unix.MNT_LOCAL != 0, fsSpace(&st), fsInodes(&st), nil
}
