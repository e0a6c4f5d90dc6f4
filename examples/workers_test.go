package examples

import (
	"os/exec"
	"strings"
	"testing"
)

// atOnce is the greatest number of lines "begin" that have no line "end" yet, and how many began.
func atOnce(t *testing.T, lines []string) (most, begun int) {
	t.Helper()
	now := 0
	for _, line := range lines {
		switch word, _, _ := strings.Cut(line, " "); word {
		case "begin":
			now++
			begun++
		case "end":
			now--
		default:
			t.Errorf("unexpected line %q", line)
		}
		most = max(most, now)
	}
	if now != 0 {
		t.Errorf("%d began and never ended", now)
	}
	return most, begun
}

// Three processes with four workers each never have more than two jobs at once. A job ends before
// its permit is given back and begins after one was granted, so that the journal's order is enough.
func TestWorkers(t *testing.T) {
	store := newStore(t)
	var cmds []*exec.Cmd
	for range 3 {
		cmds = append(cmds, program(t, store, "workers", "-permits=2", "-workers=4", "-jobs=10"))
	}
	said := journal(t, cmds...)
	all(t, cmds...)
	if most, begun := atOnce(t, said()); most > 2 || begun != 30 {
		t.Errorf("%d of 30 jobs, up to %d at once", begun, most)
	}
}

// Another number of permits is refused while the first is in use. The first is: it waits for a
// line that is never written.
func TestWorkersDisagree(t *testing.T) {
	store := newStore(t)
	first := program(t, store, "deploy", "-at-once=2", "--", "cat")
	endless(t, first)
	start(t, first)
	awaitHolders(t, store, "deploy", 1)
	out, err := program(t, store, "deploy", "-at-once=3", "--", "true").Output()
	if err == nil {
		t.Errorf("a semaphore of 3 beside one of 2: %s", out)
	}
}
