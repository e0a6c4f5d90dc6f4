//go:build unix

package group_test

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

func start(t *testing.T, script string) *group.Group {
	t.Helper()
	g, err := group.Start("/bin/sh", []string{"sh", "-c", script}, os.Environ(), false)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// events reads to the end.
func events(t *testing.T, g *group.Group) []group.Event {
	t.Helper()
	var all []group.Event
	timeout := time.After(20 * time.Second)
	for {
		select {
		case e := <-g.Events():
			all = append(all, e)
			if e.Kind == group.Gone {
				return all
			}
		case <-timeout:
			t.Fatalf("the group is not gone; so far %v", all)
		}
	}
}

// A signal that is sent at once is the command's, with its default effect, although the process is
// not the command yet.
func TestSignalRightAfterStart(t *testing.T) {
	for i := range 60 {
		sig := []syscall.Signal{syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGPIPE, syscall.SIGKILL}[i%6]
		if signal.Ignored(sig) { // as under nohup: the command ignores it, too
			continue
		}
		g, err := group.Start("/bin/sleep", []string{"sleep", "1000"}, os.Environ(), false)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Signal(sig); err != nil {
			t.Fatal(err)
		}
		if all := events(t, g); len(all) != 2 || all[0].Kind != group.Exited || all[0].Status.Signal != sig {
			t.Fatalf("%v: %v", sig, all)
		}
	}
}

// A status after Gone has no reader: the command would seem to have succeeded.
func TestStatusIsToldBeforeGone(t *testing.T) {
	for i := range 100 {
		all := events(t, start(t, "exit 7"))
		if len(all) != 2 || all[0].Kind != group.Exited || all[0].Status.ExitCode() != 7 {
			t.Fatalf("round %d: %v", i, all)
		}
	}
}

func TestSignalReachesAllAndGoneComesLast(t *testing.T) {
	dir := t.TempDir()
	ready := filepath.Join(dir, "ready")
	g := start(t, "sleep 1000 & echo $! >"+ready+"; exit 3")
	for {
		if b, _ := os.ReadFile(ready); strings.HasSuffix(string(b), "\n") {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if e := <-g.Events(); e.Kind != group.Exited || e.Status.Code != 3 {
		t.Fatalf("got %v", e)
	}
	select {
	case e := <-g.Events():
		t.Fatalf("%v while a process of the group lives", e)
	case <-time.After(250 * time.Millisecond):
	}
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if all := events(t, g); len(all) != 1 {
		t.Fatalf("got %v", all)
	}
	if err := g.Signal(0); !errors.Is(err, syscall.ESRCH) {
		t.Fatalf("after Gone: %v", err)
	}
}

// If the command cannot be executed, Failed comes instead of its end. ENOENT is also the error of a
// script whose interpreter is missing, so it does not always mean the path.
func TestWhatCannotBeExecutedIsTold(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("\x7fELF\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{"/no/such/file": os.ErrNotExist, plain: syscall.ENOEXEC, "/": os.ErrPermission} {
		g, err := group.Start(path, []string{"x"}, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		if all := events(t, g); len(all) != 2 || all[0].Kind != group.Failed || !errors.Is(all[0].Err, want) {
			t.Errorf("%s: got %v, want %v", path, all, want)
		}
	}
}
