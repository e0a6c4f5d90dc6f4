//go:build unix

package group

import (
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
)

// hasp dies after it has started a launcher and before the guardian: the command does not begin.
// The control is a launcher that gets its word.
func TestLauncherWithoutItsWord(t *testing.T) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGCHLD) // after a group's end the system reaps
	defer signal.Stop(changed)
	for _, word := range []string{"", "x"} {
		ran := filepath.Join(t.TempDir(), "ran")
		g := &Group{}
		attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}}
		launcher, err := g.startLauncher("/bin/sh", []string{"sh", "-c", "echo >" + ran + "; exit 5"}, attr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(launcher, word); err != nil {
			t.Fatal(err)
		}
		launcher.Close()
		ended := make(chan syscall.WaitStatus)
		go func() {
			var status syscall.WaitStatus
			_, _ = syscall.Wait4(g.id, &status, 0, nil)
			ended <- status
		}()
		status, want := testkit.Await(t, "the launcher", ended), 127
		if word != "" {
			want = 5
		}
		if _, err := os.Stat(ran); status.ExitStatus() != want || (err == nil) != (word != "") {
			t.Errorf("word %q: status %d, not run: %v", word, status.ExitStatus(), err)
		}
	}
}

// The launcher is killed before it gets its word: the group ends as if the command had been.
func TestLauncherIsKilled(t *testing.T) {
	for range 20 {
		g, err := Start("/bin/sleep", []string{"sleep", "1000"}, os.Environ(), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Signal(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if e := testkit.Await(t, "the end", g.Events()); e.Kind != Exited || e.Status.Signal != syscall.SIGKILL {
			t.Errorf("got %v", e)
		}
		if e := testkit.Await(t, "an empty group", g.Events()); e.Kind != Gone {
			t.Errorf("got %v", e)
		}
	}
}
