package fstype

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestClassify(t *testing.T) {
	type answer struct {
		name string
		kind Kind
	}
	for magic, want := range map[uint32]answer{
		unix.NFS_SUPER_MAGIC: {"nfs", Networked}, unix.CIFS_SUPER_MAGIC: {"cifs", Networked}, unix.SMB2_SUPER_MAGIC: {"smb2", Networked},
		unix.V9FS_MAGIC: {"9p", Networked}, unix.CEPH_SUPER_MAGIC: {"ceph", Networked}, unix.AFS_SUPER_MAGIC: {"afs", Networked},
		unix.OCFS2_SUPER_MAGIC: {"ocfs2", Networked}, 0x01161970: {"gfs2", Networked}, 0x0bd00bd0: {"lustre", Networked},
		unix.EXT4_SUPER_MAGIC: {"ext2/3/4", Local}, unix.TMPFS_MAGIC: {"tmpfs", Local}, unix.XFS_SUPER_MAGIC: {"xfs", Local},
		unix.FUSE_SUPER_MAGIC: {"fuse", FUSE}, 0x12345678: {"unknown (0x12345678)", Unknown},
	} {
		if name, kind := classify(magic); name != want.name || kind != want.kind {
			t.Errorf("%#x: %s of kind %d; want %+v", magic, name, kind, want)
		}
	}
}

// What the kernel says of a file here is one of those.
func TestOf(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if i, err := Of(int(f.Fd())); err != nil || i.Name == "" || i.Space <= 0 || i.Inodes == 0 {
		t.Errorf("%+v, %v", i, err)
	}
	if i, err := Of(-1); err == nil {
		t.Errorf("no file is on %+v", i)
	}
}
