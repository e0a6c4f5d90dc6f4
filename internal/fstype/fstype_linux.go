package fstype

import (
	"fmt"

	"golang.org/x/sys/unix"
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

// Of examines the file system of an open file.
func Of(fd int) (Info, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return Info{}, err
	}
	i := Info{Space: int64(st.Bavail) * int64(st.Bsize), Inodes: int64(st.Ffree)}
	if i.Name, i.Kind = classify(uint32(st.Type)); st.Files == 0 {
		i.Inodes = -1 // as on btrfs
	}
	return i, nil
}

func classify(magic uint32) (name string, k Kind) {
	if name, ok := networked[magic]; ok {
		return name, Networked
	}
	if magic == unix.FUSE_SUPER_MAGIC {
		return "fuse", FUSE
	}
	if name, ok := local[magic]; ok {
		return name, Local
	}
	return fmt.Sprintf("unknown (%#x)", magic), Unknown
}
