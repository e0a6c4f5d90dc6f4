//go:build unix

package main

import (
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
)

// A Redis that may have forgotten locks has not said that another machine does the job: of three
// with --skip-ok one waits that out and does it, with any format, through hasp serve as well. The
// others find it busy then. Without --skip-ok a try says why it is refused, and is no skip.
func TestSkippedNowhereInQuarantine(t *testing.T) {
	for _, strategy := range []string{"queue", "setnx", "redisson"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			server := backends.StartRedis(t, backends.RedisOptions{})
			store := server.URL() + "?ttl=4s&strategy=" + strategy
			forget := func() {
				exits(t, 0, store)
				redisDo(t, server, "FLUSHALL")
			}
			forget()
			code, _, errOut := hasp(t, store, "run", "-n", "--busy-code", "5", "job", "true")
			if code != 75 || !strings.Contains(errOut, "may have forgotten locks, and grants none for another") {
				t.Errorf("-n: exit code %d, %s", code, errOut)
			}
			if code, out, errOut := hasp(t, store, "run", "-n", "--json", "job", "true"); code != 75 || !strings.Contains(errOut, `"outcome":"quarantine"`) {
				t.Errorf("--json: exit code %d, %s%s", code, out, errOut)
			}
			skipOnThree(t, store)
			if strategy == "queue" {
				forget()
				skipOnThree(t, "hasp+"+startServer(t, store))
			}
		})
	}
}

// skipOnThree has three machines run a job that takes longer than they differ.
func skipOnThree(t *testing.T, store string) {
	t.Helper()
	file := t.TempDir() + "/ran"
	var machines sync.WaitGroup
	for range 3 {
		machines.Go(func() {
			code, _, errOut := hasp(t, store, "run", "--skip-ok", "job", "--", "sh", "-c", "echo x >>"+file+"; sleep 3")
			if code != 0 || errOut != "" { // cron sends no mail
				t.Errorf("exit code %d, %s", code, errOut)
			}
		})
	}
	machines.Wait()
	if out, err := exec.Command("cat", file).Output(); err != nil || string(out) != "x\n" {
		t.Errorf("the job has run %d times (%v)", strings.Count(string(out), "x"), err)
	}
}
