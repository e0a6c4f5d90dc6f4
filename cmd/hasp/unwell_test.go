//go:build unix

package main

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A Redis that fails to save, or that runs somebody's slow script, refuses commands at any moment, also
// those at a normal end. The job's exit code is the job's then, and no client library panics.
func TestUnwellRedis(t *testing.T) {
	for name, unwell := range map[string]func(*testing.T, *backends.Redis) (well func()){"MISCONF": failSaves, "BUSY": slowScript} {
		for _, strategy := range []string{"queue", "setnx"} {
			t.Run(name+"/"+strategy, func(t *testing.T) {
				t.Parallel()
				server := backends.StartRedis(t, backends.RedisOptions{Config: []string{"save 3600 1", "busy-reply-threshold 20"}})
				store := with(t, server.URL(), "ttl=20s&strategy="+strategy)
				holder, finish := startJob(t, store, "echo started; read x")
				waiter := exec.CommandContext(t.Context(), "hasp", "run", "a", "--", "true")
				waiter.Env = append(os.Environ(), "HASP_STORE="+store)
				var said bytes.Buffer
				waiter.Stderr = &said
				if err := waiter.Start(); err != nil {
					t.Fatal(err)
				}
				testkit.Eventually(t, "both to listen", func() bool {
					clients, _ := server.Do("CLIENT", "LIST", "TYPE", "pubsub")
					return strings.Count(clients, "sub=1") >= 2
				})
				well := unwell(t, server)
				_ = waiter.Process.Signal(syscall.SIGTERM)
				_ = waiter.Wait()
				if code := waiter.ProcessState.ExitCode(); code != 143 || strings.Contains(said.String(), "goroutine ") {
					t.Errorf("a waiter that is told to end: %d, %s", code, &said)
				}
				finish()
				_ = holder.Wait()
				if code, out := holder.ProcessState.ExitCode(), holder.Stderr.(*bytes.Buffer).String(); code != 0 || strings.Contains(out, "goroutine ") {
					t.Errorf("the holder, at its end: %d, %s", code, out)
				}
				well()
				if code, _, out := hasp(t, store, "run", "--wait", "2m", "a", "--", "true"); code != 0 {
					t.Errorf("when the server is well again: %d, %s", code, out)
				}
			})
		}
	}
}

// startJob runs a job under the lock "a", and returns when it has begun. finish gives it a line.
func startJob(t *testing.T, store, script string) (c *exec.Cmd, finish func()) {
	t.Helper()
	c = exec.CommandContext(t.Context(), "hasp", "run", "a", "--", "sh", "-c", script)
	c.Env = append(os.Environ(), "HASP_STORE="+store)
	c.Stderr = &bytes.Buffer{}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v: %s", line, err, c.Stderr)
	}
	return c, func() { _, _ = in.Write([]byte("\n")) }
}

// failSaves makes the server fail to write its file: a folder has its name.
func failSaves(t *testing.T, server *backends.Redis) (well func()) {
	dir, err := server.Do("CONFIG", "GET", "dir")
	if err != nil {
		t.Fatal(err)
	}
	_, dir, _ = strings.Cut(dir, "\n")
	if err := os.MkdirAll(filepath.Join(strings.TrimSpace(dir), "dump.rdb", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	redisDo(t, server, "BGSAVE")
	testkit.Eventually(t, "the save to fail", func() bool {
		info, _ := server.Do("INFO", "persistence")
		return strings.Contains(info, "rdb_last_bgsave_status:err")
	})
	return func() { redisDo(t, server, "CONFIG", "SET", "stop-writes-on-bgsave-error", "no") }
}

// slowScript runs a script that does not end by itself.
func slowScript(t *testing.T, server *backends.Redis) (well func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = server.Do("EVAL", "while true do end", "0")
	}()
	testkit.Eventually(t, "the script to be slow", func() bool {
		_, err := server.Do("PING")
		return err != nil && strings.Contains(err.Error(), "BUSY")
	})
	return func() {
		redisDo(t, server, "SCRIPT", "KILL")
		<-ended
	}
}
