package examples

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/filelock"
)

// awaitHolders returns when so many hold the lock.
func awaitHolders(t *testing.T, store, name string, n int) {
	t.Helper()
	c, err := hasp.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for queue, err := range c.Follow(t.Context(), name) {
		if err != nil {
			t.Fatal(err)
		}
		if len(queue.Holders) == n {
			return
		}
	}
}

// Six machines deploy at the same time, never more than two at once.
func TestDeploy(t *testing.T) {
	store := newStore(t)
	var cmds []*exec.Cmd
	for range 6 {
		cmds = append(cmds, program(t, store, "deploy", "-at-once=2", "--", "sh", "-c", "echo begin; echo end"))
	}
	said := journal(t, cmds...)
	all(t, cmds...)
	if most, begun := atOnce(t, said()); most > 2 || begun != 6 {
		t.Errorf("%d of 6 machines, up to %d at once", begun, most)
	}
}

// A machine that hangs is stopped when its time is over, reports it, and the next has its turn.
func TestDeployHangs(t *testing.T) {
	store := newStore(t)
	hung := program(t, store, "deploy", "-max-hold=200ms", "--", "cat")
	endless(t, hung)
	start(t, hung)
	next := program(t, store, "deploy", "--", "echo", "begin")
	said := journal(t, next)
	all(t, next)
	if lines := said(); len(lines) != 1 {
		t.Errorf("the next machine did %q", lines)
	}
	if err := hung.Wait(); !errors.As(err, new(*exec.ExitError)) {
		t.Errorf("the machine that hung: %v", err)
	}
}
