//go:build linux || darwin || freebsd

package filelock

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// LockAll must not take one store for two because its directory was spelled in two ways, nor
// a copy for the store that it was made of.
func TestIdentity(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "store")
	identity := func(path string) string {
		t.Helper()
		id, err := openBackend(t, path).Identity(patient(t))
		if err != nil || id == "" || len(id) > 200 {
			t.Fatalf("the identity of %s: %q, %v", path, id, err)
		}
		return id
	}
	own := identity(dir)
	if err := os.Symlink("a", filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	same := []string{dir, dir + "/", filepath.Join(top, "a", ".", "store"), filepath.Join(top, "link", "store")}
	t.Chdir(filepath.Join(top, "a"))
	same = append(same, "store", "../link/store")
	bound := filepath.Join(top, "bound")
	if err := os.Mkdir(bound, 0o700); err != nil {
		t.Fatal(err)
	}
	if bind(dir, bound) == nil { // only root can, and only on Linux
		t.Cleanup(func() { _ = unix.Unmount(bound, 0) })
		same = append(same, bound)
	}
	for _, path := range same {
		if id := identity(path); id != own {
			t.Errorf("by %s it is %q, not %q", path, id, own)
		}
	}
	twin, links := filepath.Join(top, "twin"), filepath.Join(top, "links")
	if err := os.Mkdir(twin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{formatFile, queuesDirName} {
		if err := copyTree(filepath.Join(dir, part), filepath.Join(twin, part)); err != nil {
			t.Fatal(err)
		}
	}
	linked(t, dir, links)
	for _, path := range []string{twin, links, filepath.Join(top, "a", "store2")} {
		if id := identity(path); id == own {
			t.Errorf("%s has the identity of another store, %q", path, id)
		}
	}
}
