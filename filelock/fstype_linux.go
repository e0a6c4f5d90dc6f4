package filelock

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// networked are the file systems that several machines may share. Their flock is at best
// a matter of mount options, and a named pipe connects no two kernels, so each machine
// would take the other's holders for dead.
var networked = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "nfs",
	unix.SMB_SUPER_MAGIC:   "smb",
	unix.CIFS_SUPER_MAGIC:  "cifs",
	unix.SMB2_SUPER_MAGIC:  "smb2",
	unix.V9FS_MAGIC:        "9p",
	unix.CEPH_SUPER_MAGIC:  "ceph",
	unix.AFS_SUPER_MAGIC:   "afs",
	unix.AFS_FS_MAGIC:      "afs",
	unix.CODA_SUPER_MAGIC:  "coda",
	unix.NCP_SUPER_MAGIC:   "ncp",
	unix.OCFS2_SUPER_MAGIC: "ocfs2",
	0x01161970:             "gfs2",
	0x0bd00bd0:             "lustre",
	0x20030528:             "orangefs (pvfs2)",
	0x47504653:             "gpfs",
	0x19830326:             "beegfs (fhgfs)",
	0xaad7aaea:             "panfs",
	0x7c7c6673:             "prl_fs (Parallels shared folder)",
	0x786f4256:             "vboxsf (VirtualBox shared folder)",
	0xbacbacbc:             "vmhgfs (VMware shared folder)",
}

// local are those known to be one machine's own.
var local = map[uint32]string{
	unix.EXT4_SUPER_MAGIC:      "ext2/3/4",
	unix.XFS_SUPER_MAGIC:       "xfs",
	unix.BTRFS_SUPER_MAGIC:     "btrfs",
	unix.TMPFS_MAGIC:           "tmpfs",
	unix.RAMFS_MAGIC:           "ramfs",
	unix.OVERLAYFS_SUPER_MAGIC: "overlay",
	unix.F2FS_SUPER_MAGIC:      "f2fs",
	0x2fc12fc1:                 "zfs",
	0xca451a4e:                 "bcachefs",
}

// checkFS refuses a file system that is not this machine's own.
func checkFS(fd int, path string, o *Options) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", path, err)
	}
	name, ok := classify(uint32(st.Type), o.AllowFUSE)
	if ok {
		return nil
	}
	hint := "use a directory on a local disk or tmpfs, or a store with a server"
	if uint32(st.Type) == unix.FUSE_SUPER_MAGIC {
		hint = "if it is local, allow it with Options.AllowFUSE or allowfuse=true"
	}
	return fmt.Errorf("%w: %s is on a %s file system, where locks do not exclude other machines; %s",
		driver.ErrInvalid, path, name, hint)
}

// examineFS is for Diagnose. known says that the file system is one machine's own.
func examineFS(fd int) (name string, known bool, space, inodes int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return "", false, 0, 0, err
	}
	name, _ = classify(uint32(st.Type), true)
	_, known = local[uint32(st.Type)]
	inodes = int64(st.Ffree)
	if st.Files == 0 {
		inodes = -1 // made as needed, as btrfs does
	}
	return name, known, int64(st.Bavail) * int64(st.Bsize), inodes, nil
}

// classify names a file system and says whether a store may be on it. One that nobody has
// heard of may: it is more often new than networked, and Diagnose points at it.
func classify(magic uint32, allowFUSE bool) (name string, ok bool) {
	if name, ok := networked[magic]; ok {
		return name, false
	}
	if magic == unix.FUSE_SUPER_MAGIC {
		return "fuse", allowFUSE
	}
	if name, ok := local[magic]; ok {
		return name, true
	}
	return fmt.Sprintf("unknown (%#x)", magic), true
}
