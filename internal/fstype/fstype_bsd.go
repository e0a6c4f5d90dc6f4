//go:build darwin || freebsd

package fstype

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Of examines the file system of an open file, by the kernel's own word on whether it is local.
func Of(fd int) (Info, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return Info{}, err
	}
	name, flags := fsName(&st)
	i := Info{Name: name, Kind: Networked, Space: fsSpace(&st), Inodes: fsInodes(&st)}
	switch {
	case strings.Contains(name, "fuse"):
		i.Kind = FUSE
	case flags&unix.MNT_LOCAL != 0:
		i.Kind = Local
	}
	return i, nil
}
