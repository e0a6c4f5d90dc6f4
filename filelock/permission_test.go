//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asOtherUser runs a test again as another user, which has less permission than root.
func asOtherUser(t *testing.T, test string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hasp-user-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	b, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "test")
	const otherUser = 65534
	// A process that is forked meanwhile would keep the file open, and then it cannot be run.
	syscall.ForkLock.RLock()
	err = os.WriteFile(copied, b, 0o755)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{dir, copied} {
		if err := os.Chown(f, otherUser, otherUser); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(copied, "-test.run", "^"+test+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	out, err := cmd.CombinedOutput()
	t.Logf("as uid %d:\n%s", otherUser, out)
	if err != nil {
		t.Error(err)
	}
}

// A directory that is not safe is refused before anything is made in it.
func TestUnsafeDirectory(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		make func(dir string) error
		why  string
	}{
		"writable": {func(d string) error { return errors.Join(os.Mkdir(d, 0o700), os.Chmod(d, 0o777)) }, "others may write"},
		"foreign":  {func(d string) error { return errors.Join(os.Mkdir(d, 0o700), os.Chown(d, 12345, -1)) }, "belongs to uid 12345"},
		"a file":   {func(d string) error { return os.WriteFile(d, nil, 0o600) }, "must be a directory"},
		"a link": {func(d string) error {
			return errors.Join(os.Mkdir(d+".real", 0o700), os.Symlink(d+".real", d))
		}, "not a symbolic link"},
		"in use": {func(d string) error {
			return errors.Join(os.Mkdir(d, 0o700), os.WriteFile(d+"/letter.txt", nil, 0o600))
		}, "is not a store"},
		"newer": {func(d string) error {
			return errors.Join(os.Mkdir(d, 0o700), os.WriteFile(d+"/format", []byte("hasp file store, format 3\n"), 0o600))
		}, "has format 3, of a newer hasp, and this program knows format 2: update this program"},
		"older": {func(d string) error {
			return errors.Join(os.Mkdir(d, 0o700), os.WriteFile(d+"/format", []byte("hasp file store, format 1\n"), 0o600))
		}, "has format 1, of an older hasp, and this program knows format 2: stop the older programs, and remove what is in it"},
		"not ours": {func(d string) error {
			return errors.Join(os.Mkdir(d, 0o700), os.WriteFile(d+"/format", []byte("hasp file store, format two\n"), 0o600))
		}, "no version of hasp"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := storeDir(t)
			if err := c.make(dir); err != nil {
				if errors.Is(err, os.ErrPermission) {
					t.Skip("only root may make this trap: ", err)
				}
				t.Fatal(err)
			}
			_, err := New(patient(t), dir, nil)
			if err == nil || !strings.Contains(err.Error(), c.why) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v, want one about %q", err, c.why)
			}
		})
	}
}

// chmod 000 does not stop those who are in, and refuses newcomers in words. Root is not
// refused anything.
func TestNoPermission(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		asOtherUser(t, "TestNoPermission")
		return
	}
	c := held(t)
	if err := os.Chmod(c.dir, 0); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(c.dir, 0o700)
	c.refused(t, "permission")
	time.Sleep(2 * holderUpkeepEvery)
	if !c.lease.Held() {
		t.Error("the holder lost the lock for a chmod")
	}
	if err := c.lease.Release(patient(t)); err != nil {
		t.Error(err)
	}
}

func init() {
	jobs["umask"] = func(j job) error {
		unix.Umask(j.Umask)
		return holdJob(j)
	}
}

// A umask that takes permissions from the owner changes nothing of a store, nor of the directories
// above it that are made with it: it works at once, and later for a process with another umask.
func TestUmaskOfTheOwner(t *testing.T) {
	for _, query := range []string{"", "?mode=0700", "?mode=0770"} {
		for _, umask := range []int{0o277, 0o377, 0o777} {
			t.Run(fmt.Sprintf("%s%#o", query, umask), func(t *testing.T) {
				root := usersDir(t)
				above := "/new/parents"
				if query == "?mode=0770" {
					above = "" // which such a store does not make
				}
				as := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ana, Gid: ana, Groups: []uint32{ana}}}
				url := root + above + "/store" + query
				for _, mask := range []int{umask, 0o022, umask} {
					c := startWith(t, job{Do: "umask", Dir: url, Name: "a", Umask: mask}, as)
					c.must("holds")
					_ = c.in.Close()
					if err := c.wait(); err != nil {
						t.Fatal(err)
					}
				}
				err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
					if err != nil || path == root {
						return err
					}
					info, err := d.Info()
					want := fs.FileMode(0o600)
					if d.IsDir() {
						want = 0o700
					}
					if err == nil && info.Mode().Perm()&0o700 != want {
						t.Errorf("%s has mode %s", path, info.Mode())
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}
