package testkit

import (
	"syscall"
	"testing"
)

// MountSmall puts a separate file system of 4 MB on dir.
func MountSmall(t *testing.T, dir string) (unmount func()) {
	t.Helper()
	if err := syscall.Mount("hasp-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("only root can mount: ", err)
	}
	return func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }
}
