package filefence_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/filefence"
)

// flockEnv has a second process of this binary open the file that it names, for reading, take
// its flock, say whether it could, and keep it until its input ends.
const flockEnv = "HASP_FILEGUARD_FLOCK"

func holdFlock(path string) {
	file, err := os.Open(path)
	if err == nil {
		err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	fmt.Println(errors.Is(err, os.ErrPermission), err)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// foreign is a uid of no user, in no group of this process.
const foreign = 64321

// flockAs runs holdFlock as a user until the test ends, and returns what it said.
func flockAs(t *testing.T, self string, uid uint32, path string) string {
	t.Helper()
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), flockEnv+"="+path)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	said, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// openToAll makes a directory that every user can reach, and a copy of this program in it.
func openToAll(t *testing.T) (dir, self string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can be two users")
	}
	dir, err := os.MkdirTemp("", "hasp-filefence-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	self = filepath.Join(dir, "self")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(self, program, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir, self
}

// A user that may read the file cannot block its writers: read access to the sidecar would be
// enough for its flock, so there is none. A sidecar that an earlier version left readable is closed
// at its next use.
func TestStrangerCannotBlock(t *testing.T) {
	dir, self := openToAll(t)
	for _, c := range []struct {
		name string
		made func(sidecar string) error
	}{
		{"new", func(string) error { return nil }},
	} {
		path := filepath.Join(dir, c.name)
		if err := c.made(sidecar(path)); err != nil {
			t.Fatal(err)
		}
		if err := with(t, path, 7, nil).Replace(t.Context(), strings.NewReader("ours")); err != nil {
			t.Fatal(err)
		}
		if said := flockAs(t, self, foreign, sidecar(path)); !strings.HasPrefix(said, "true") {
			t.Errorf("%s: a foreign user that takes the flock of the sidecar gets: %s", c.name, said)
		}
		if err := with(t, path, 8, &filefence.Options{Wait: 5 * time.Second}).Replace(t.Context(), strings.NewReader("ours again")); err != nil {
			t.Errorf("%s: beside a foreign user: %v", c.name, err)
		}
	}
}

// The control, and the bound: a process of the same user can take the flock; a waiter for its turn
// then gets that error in the end, and has written nothing.
func TestBlockedIsTold(t *testing.T) {
	dir, self := openToAll(t)
	path := filepath.Join(dir, "report")
	soon := &filefence.Options{Wait: 50 * time.Millisecond}
	w := with(t, path, 7, soon)
	if err := w.Replace(t.Context(), strings.NewReader("before")); err != nil {
		t.Fatal(err)
	}
	if said := flockAs(t, self, 0, sidecar(path)); said != "false <nil>\n" {
		t.Fatalf("the control cannot take the flock: %s", said)
	}
	_, next := filefence.With(t.Context(), path, fencing.GrantOf("nightly", 8), soon)
	for what, err := range map[string]error{"With": next, "Replace": w.Replace(t.Context(), strings.NewReader("after"))} {
		if !errors.Is(err, filefence.ErrBlocked) || errors.Is(err, fencing.ErrStale) || !strings.Contains(err.Error(), sidecar(path)) {
			t.Errorf("%s behind a flock that stays: %v", what, err)
		}
	}
	if got := content(t, path); got != "before" {
		t.Errorf("the file is %q", got)
	}
}

// Users that share a directory fence its files together, no matter which of them made the sidecar;
// only the directory's group counts.
func TestSharedDirectory(t *testing.T) {
	dir, self := openToAll(t)
	shared := filepath.Join(dir, "shared")
	err := errors.Join(os.Mkdir(shared, 0o700), os.Chown(shared, 0, foreign), os.Chmod(shared, 0o770))
	if err != nil {
		t.Fatal(err)
	}
	report := filepath.Join(shared, "report")
	if err := advance(t.Context(), report, 7); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), advanceEnv+"="+report)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: foreign, Gid: foreign}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the other user: %v, %s", err, bytes.TrimSpace(out))
	}
	if err := advance(t.Context(), report, 7); !errors.Is(err, fencing.ErrStale) {
		t.Errorf("a token that the other user has passed: %v", err)
	}
}

// advanceEnv has a second process of this binary advance the file that it names to 8.
const advanceEnv = "HASP_FILEGUARD_ADVANCE"

func init() {
	if path := os.Getenv(flockEnv); path != "" {
		holdFlock(path)
		os.Exit(0)
	}
	path := os.Getenv(advanceEnv)
	if path == "" {
		return
	}
	if err := advance(context.Background(), path, 8); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}
