package backends

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
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
	if !strings.Contains(dir, "hasp-servers-") {
		t.Fatalf("the server works in %s", dir)
	}
	for deadline := time.Now().Add(serverprocess.StartLimit); ; time.Sleep(serverprocess.PollEvery) {
		gone := serverprocess.Gone(pid)
		_, err := os.Stat(dir)
		if gone && errors.Is(err, fs.ErrNotExist) {
			return
		}
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("%s after its starter's death, server %d is gone: %t, and stat of its data says: %v", serverprocess.StartLimit, pid, gone, err)
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
	dir, err := serverprocess.NewDir("victim", nil)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("victim's server: %d %s\n", r.Pid(), filepath.Dir(dir))
	time.Sleep(time.Minute) // killed before
}
