package main

import (
	"path/filepath"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
	"golang.org/x/sys/unix"
)

// A store's directory that cannot be written to, or is none.
func TestReadOnlyFileStore(t *testing.T) {
	dir := t.TempDir()
	unmount := testkit.MountSmall(t, dir)
	defer unmount()
	made, fresh := "file://"+filepath.Join(dir, "made"), "file://"+filepath.Join(dir, "fresh")
	exits(t, 0, made)
	remountReadOnly(t, dir)
	exits(t, 78, made)
	exits(t, 78, fresh)
	exits(t, 78, "file:///etc/passwd")
	exits(t, 78, "file:///proc/self/x")
}

func remountReadOnly(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
}
