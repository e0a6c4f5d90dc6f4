//go:build unix

package bound

import (
	"os"
	"os/exec"
	"runtime"
	"testing"
)

// A process is known by its start as well: another one with its number is not taken for it.
func TestReusedNumber(t *testing.T) {
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	b, err := To(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	same := ByID(b.ID())
	if same == nil || same.PID != b.PID || !same.Alive() {
		t.Errorf("%v of %s", same, b.ID())
	}
	if runtime.GOOS == "linux" || runtime.GOOS == "darwin" {
		other := &Process{PID: b.PID, Start: b.Start + "1"}
		if other.Alive() {
			t.Error("a process that has started at another time lives")
		}
		<-other.Ended()
	}
	_ = c.Process.Kill()
	_ = c.Wait()
	if same.Alive() {
		t.Error("a dead one lives")
	}
	for _, id := range []string{"", "0", "x", "-1.5"} {
		if got := ByID(id); got != nil {
			t.Errorf("%q: %v", id, got)
		}
	}
}

func TestAbove(t *testing.T) {
	above := Above()
	if len(above) == 0 || above[0].PID != os.Getppid() || !above[0].Alive() {
		t.Errorf("%v, not %d at first", above, os.Getppid())
	}
	if last := above[len(above)-1].PID; runtime.GOOS == "linux" && last != 1 {
		t.Errorf("%d at the top", last)
	}
}
