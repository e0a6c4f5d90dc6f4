package backends

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// victim makes TestNothingOutlivesUs's second process start a server and wait for death.
const victim = "HASP_BACKENDS_VICTIM"

func TestNothingOutlivesUs(t *testing.T) {
	if os.Getenv(victim) != "" {
		beVictim(t)
		return
	}
	for _, pause := range []string{"running", "paused"} {
		t.Run(pause, func(t *testing.T) { killVictim(t, pause) })
	}
}

// killVictim kills a process that has started a server by SIGKILL. The server, running
// or frozen, and its data must be gone soon after.
func killVictim(t *testing.T, pause string) {
	need(t, redisServer)
	cmd := exec.Command(os.Args[0], "-test.run=^TestNothingOutlivesUs$")
	cmd.Env = append(cmd.Environ(), victim+"="+pause)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var dir string
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		if n, _ := fmt.Sscanf(lines.Text(), "victim's server: %d %s", &pid, &dir); n != 2 {
			pid = 0
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // says that it was killed
	if pid == 0 {
		t.Fatal("the second process started no server")
	}
	if !strings.Contains(dir, "hasp-backends-") {
		t.Fatalf("the server works in %s", dir)
	}
	for deadline := time.Now().Add(startLimit); ; time.Sleep(pollEvery) {
		_, state := parentAndState(pid)
		_, err := os.Stat(dir)
		if (state == 0 || state == 'Z') && errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("%s after its starter's death, server %d is in state %q, and stat of its data says: %v", startLimit, pid, state, err)
		}
	}
}

func beVictim(t *testing.T) {
	r := StartRedis(t, RedisOptions{})
	if os.Getenv(victim) == "paused" {
		if err := r.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	w, err := scratch()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("victim's server: %d %s\n", r.Pid(), w.dir)
	time.Sleep(time.Minute) // killed before
}
