package cronhasp_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/cronhasp"
	"github.com/hasplock/hasp/adapters/internal/processes"
	_ "github.com/hasplock/hasp/filelock"
)

// Three processes have the same job at each second: one runs it. The control: without the wrapper
// all do.
func TestProcesses(t *testing.T) {
	if dir, mode, is := processes.Child(); is {
		chain := cron.NewChain()
		failed := func(err error) { t.Error(err) }
		if mode == "locked" {
			chain = cron.NewChain(cronhasp.Locked(processes.Client(t, dir), "report", failed, hasp.MinHold(700*time.Millisecond)))
		}
		c := cron.New(cron.WithSeconds())
		if _, err := c.AddJob("* * * * * *", chain.Then(cron.FuncJob(func() {
			if err := processes.Inside(dir, 20*time.Millisecond); err != nil {
				t.Error(err)
			}
		}))); err != nil {
			t.Fatal(err)
		}
		c.Start()
		time.Sleep(4 * time.Second)
		<-c.Stop().Done()
		return
	}
	dir := t.TempDir()
	for _, out := range processes.Run(t, 3, dir, "locked") {
		t.Error(out)
	}
	runs := processes.Runs(t, dir)
	if once := slices.Compact(slices.Clone(runs)); len(runs) < 2 || len(once) != len(runs) {
		t.Errorf("runs in the seconds %q, want one in each", runs)
	}
	out := strings.Join(processes.Run(t, 3, t.TempDir(), "control"), "")
	if !strings.Contains(out, processes.ErrOverlap.Error()) {
		t.Errorf("the control was not caught: %s", out)
	}
}

// A run that another machine has is skipped in silence; a loss is told, and so is a refusal.
func TestLoss(t *testing.T) {
	c := processes.Client(t, t.TempDir())
	var told []error
	ran := 0
	wrap := cronhasp.Locked(c, "report", func(err error) { told = append(told, err) })
	wrap(cron.FuncJob(func() {
		wrap(cron.FuncJob(func() { ran++ })).Run() // held
		if err := processes.Lose(t.Context(), c, "report"); err != nil {
			t.Error(err)
		}
	})).Run()
	if ran != 0 || len(told) != 1 || !errors.Is(told[0], hasp.ErrLost) {
		t.Errorf("ran %d times, told %v", ran, told)
	}
	wrap(cron.FuncJob(func() { ran++ })).Run()
	if ran != 1 || len(told) != 1 {
		t.Errorf("ran %d times, told %v", ran, told)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	wrap(cron.FuncJob(func() { t.Error("it ran without a lock") })).Run()
	if len(told) != 2 || !errors.Is(told[1], hasp.ErrClosed) {
		t.Errorf("told %v", told)
	}
}
