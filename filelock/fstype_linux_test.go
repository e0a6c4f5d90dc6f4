package filelock

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestClassify(t *testing.T) {
	for magic, want := range map[uint32]string{
		unix.NFS_SUPER_MAGIC: "nfs", unix.CIFS_SUPER_MAGIC: "cifs", unix.SMB2_SUPER_MAGIC: "smb2",
		unix.V9FS_MAGIC: "9p", unix.CEPH_SUPER_MAGIC: "ceph", unix.AFS_SUPER_MAGIC: "afs",
		unix.OCFS2_SUPER_MAGIC: "ocfs2", 0x01161970: "gfs2", 0x0bd00bd0: "lustre",
	} {
		if name, ok := classify(magic, true); ok || name != want {
			t.Errorf("%#x: %s, accepted %t; want %s, refused", magic, name, ok, want)
		}
	}
	for magic, want := range map[uint32]string{
		unix.EXT4_SUPER_MAGIC: "ext2/3/4", unix.TMPFS_MAGIC: "tmpfs", unix.XFS_SUPER_MAGIC: "xfs", 0x12345678: "unknown (0x12345678)",
	} {
		if name, ok := classify(magic, false); !ok || name != want {
			t.Errorf("%#x: %s, accepted %t; want %s, accepted", magic, name, ok, want)
		}
	}
	if _, ok := classify(unix.FUSE_SUPER_MAGIC, false); ok {
		t.Error("fuse is accepted without being asked for")
	}
	if _, ok := classify(unix.FUSE_SUPER_MAGIC, true); !ok {
		t.Error("fuse is refused although it is allowed")
	}
}
