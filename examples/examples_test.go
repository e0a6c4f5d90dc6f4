package examples

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var (
	bin        string   // directory of the programs
	buildFlags []string // as the tests are built
)

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if bin, err = os.MkdirTemp("", "hasp-examples-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(bin)
	args := append([]string{"build", "-o", bin + string(filepath.Separator)}, buildFlags...)
	build := exec.Command("go", append(args, "./cron", "./deploy", "./inventory", "./leader", "./moving", "./scheduler", "./workers")...)
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, out)
	}
	return m.Run(), nil
}

// newStore is the URL of a directory of the test's own.
func newStore(t *testing.T) string {
	return "file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "locks"))
}

// program is an example as a command, which the test starts and which ends with it at the latest.
func program(t *testing.T, store, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), append([]string{"-store=" + store}, args...)...)
	cmd.Stderr = t.Output()
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			_ = cmd.Process.Kill() // it may have ended by itself
			_ = cmd.Wait()         // "killed" is no news
		}
	})
	return cmd
}

func start(t *testing.T, cmds ...*exec.Cmd) {
	t.Helper()
	for _, cmd := range cmds {
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	}
}

// journal is a file that programs have as their standard output. Each line is one write, at its end:
// so the lines of all of them are in the order in which they were written.
func journal(t *testing.T, cmds ...*exec.Cmd) (lines func() []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for _, cmd := range cmds {
		cmd.Stdout = f
	}
	return func() []string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
	}
}

// all starts the programs and waits until each has ended without an error.
func all(t *testing.T, cmds ...*exec.Cmd) {
	t.Helper()
	start(t, cmds...)
	for _, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", cmd, err)
		}
	}
}

// output has the lines that a program prints, as they come. awaits returns what follows the word in
// the first line from here on that begins with it.
func output(t *testing.T, cmd *exec.Cmd) (awaits func(word string) string) {
	t.Helper()
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(pipe)
	return func(word string) string {
		t.Helper()
		for {
			line, err := lines.ReadString('\n')
			if rest, found := strings.CutPrefix(line, word+" "); found {
				return strings.TrimSpace(rest)
			}
			if err == io.EOF {
				t.Fatalf("%s has ended, and never said %q", cmd, word)
			} else if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// endless has a program, and what it starts, wait for input that comes to an end with the test.
func endless(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() }) // before program's, which waits for all that have its output
}
