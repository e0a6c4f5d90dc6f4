//go:build linux || darwin || freebsd

package filelock

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
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
			return errors.Join(os.Mkdir(d, 0o700), os.WriteFile(d+"/format", []byte("hasp file store, format 2\n"), 0o600))
		}, "another version"},
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
