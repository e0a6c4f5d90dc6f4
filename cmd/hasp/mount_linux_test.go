package main

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A store's directory that cannot be written to, or is none.
func TestReadOnlyFileStore(t *testing.T) {
	dir := t.TempDir()
	unmount := mountSmall(t, dir)
	defer unmount()
	made, fresh := "file://"+filepath.Join(dir, "made"), "file://"+filepath.Join(dir, "fresh")
	exits(t, 0, made)
	remountReadOnly(t, dir)
	exits(t, 78, made)
	exits(t, 78, fresh)
	exits(t, 78, "file:///etc/passwd")
	exits(t, 78, "file:///proc/self/x")
}

// mountSmall puts a separate file system on dir.
func mountSmall(t *testing.T, dir string) (unmount func()) {
	t.Helper()
	if err := unix.Mount("hasp-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("only root can mount: ", err)
	}
	return func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }
}

func remountReadOnly(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
