//go:build unix

package s3lock_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/tests/internal/haspbin"
)

// command is hasp on a bucket.
type command struct {
	program, store, dir string
}

func (c command) prepare(t *testing.T, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), c.program, args...)
	cmd.Dir = c.dir
	cmd.Env = append(clean(), "HASP_STORE="+c.store, "PATH="+filepath.Dir(c.program)+":"+os.Getenv("PATH"))
	return cmd
}

// clean is the environment without the variables of the tests, which hasp would take for mistyped
// ones of hasp's.
func clean() []string {
	return slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "HASP_") })
}

// does runs hasp, and wants the exit status and what it prints.
func (c command) does(t *testing.T, code int, out string, args ...string) {
	t.Helper()
	cmd := c.prepare(t, args...)
	got, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if n := cmd.ProcessState.ExitCode(); n != code || !regexp.MustCompile("(?m)"+out).Match(got) {
		t.Fatalf("hasp %s: exit status %d, want %d; it says %q, want %q", strings.Join(args, " "), n, code, got, out)
	}
}

// starts runs hasp until the returned function ends it.
func (c command) starts(t *testing.T, args ...string) (ends func(signal syscall.Signal)) {
	t.Helper()
	cmd := c.prepare(t, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := os.CreateTemp(c.dir, "stderr") // a file: what a killed hasp leaves behind keeps a pipe open
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func(signal syscall.Signal) {
		cmd.Process.Signal(signal)
		cmd.Wait()
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		ended = true
	}
	t.Cleanup(func() {
		if !ended {
			end(syscall.SIGKILL)
		}
		if t.Failed() {
			text, _ := os.ReadFile(stderr.Name())
			t.Logf("hasp %s: %s", strings.Join(args, " "), text)
		}
	})
	return end
}

// The command on a bucket: run, who, ls, doctor, release --force, elect, and what it refuses.
func TestCommand(t *testing.T) {
	s := serve(t, nil)
	c := command{haspbin.Build(t), s.url("jobs") + "&ttl=6s&poll=100ms", t.TempDir()}
	said := func(file string) func() bool {
		return func() bool {
			text, _ := os.ReadFile(filepath.Join(c.dir, file))
			return len(text) > 0
		}
	}
	c.does(t, 3, "", "run", "job", "--", "sh", "-c", "test $HASP_TOKEN -gt 1000000 && exit 3")
	c.does(t, 0, `"job" is free`, "who", "job")

	held := c.starts(t, "run", "--note", "nightly", "job", "--", "sh", "-c", "echo $HASP_HOLDER >held; exec sleep 1000")
	testkit.Eventually(t, "the job runs", said("held"))
	c.does(t, 0, "nightly", "who", "job")
	c.does(t, 0, "^job\\b", "ls")
	c.does(t, 75, "nightly", "run", "-n", "job", "--", "true")
	holder, err := os.ReadFile(filepath.Join(c.dir, "held"))
	if err != nil {
		t.Fatal(err)
	}
	c.does(t, 0, "", "release", "--force", "--reason", "it hangs", "--holder", strings.TrimSpace(string(holder)), "job")
	c.does(t, 0, "^after it$", "run", "job", "--", "echo", "after it")
	held(syscall.SIGTERM)

	c.does(t, 0, "conditions", "doctor")
	c.does(t, 78, "", "run", "--shared", "job", "--", "true")

	first := c.starts(t, "elect", "--value", "addr-a", "web", "--", "sh", "-c", "echo yes >a; exec sleep 1000")
	testkit.Eventually(t, "the first candidate leads", said("a"))
	second := c.starts(t, "elect", "--value", "addr-b", "web", "--", "sh", "-c", "echo yes >b; exec sleep 1000")
	c.does(t, 0, "addr-a", "who", "web")
	first(syscall.SIGKILL) // its record stays, for its TTL
	testkit.Eventually(t, "the second leads", said("b"))
	c.does(t, 0, "addr-b", "who", "web")
	second(syscall.SIGTERM)
	c.does(t, 0, `"web" is free`, "who", "web")
}
