package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Three machines start each of four runs at once, and the report has each run once.
func TestCron(t *testing.T) {
	store, report := newStore(t), filepath.Join(t.TempDir(), "report")
	var cmds []*exec.Cmd
	for slot := range 4 {
		for range 3 {
			cmds = append(cmds, program(t, store, "cron", "-report="+report, fmt.Sprintf("-slot=run-%d", slot)))
		}
	}
	said := journal(t, cmds...)
	all(t, cmds...)

	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	runs := map[string]int{}
	for line := range strings.Lines(string(text)) {
		run, _, _ := strings.Cut(line, " ")
		runs[run]++
	}
	for slot := range 4 {
		if n := runs[fmt.Sprintf("run-%d", slot)]; n != 1 {
			t.Errorf("run %d is %d times in the report:\n%s", slot, n, text)
		}
	}
	did, saw := 0, 0
	for _, line := range said() {
		switch {
		case strings.HasPrefix(line, "done: "):
			did++
		case strings.HasPrefix(line, "done before: "):
			saw++
		}
	}
	if did != 4 || saw != 8 {
		t.Errorf("%d did the job and %d found it done, of 4 and 8", did, saw)
	}
}
