//go:build unix && !noserve && !nohttp && !noredis

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	lib "github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"golang.org/x/sys/unix"
)

// auditLine is a line as a program reads it.
type auditLine struct {
	Time                        time.Time
	Event, Name, Client, Reason string
	Who                         lib.Owner
	Token, Lines                int64
	Held                        *int64 `json:"held_ms"`
}

func auditLines(t *testing.T, files ...string) (all []auditLine) {
	t.Helper()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var x auditLine
			if err := json.Unmarshal(line, &x); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, x)
		}
	}
	return all
}

// The audit of a server says who was granted what, and how that ended: given back, lost by a holder
// that was killed, or taken away. It has no token of a client.
func TestServeAudit(t *testing.T) {
	dir := t.TempDir()
	tokens, file := filepath.Join(dir, "tokens"), filepath.Join(dir, "audit.log")
	secret := map[string]string{}
	for client, rights := range map[string]string{"ci": "look,lock", "ops": "look,operate"} {
		code, out, errOut := hasp(t, "", "serve", "token", "--tokens", tokens, "--rights", rights, client)
		if code != 0 {
			t.Fatal(errOut)
		}
		secret[client] = strings.TrimSpace(out)
	}
	_, host, _ := strings.Cut(startServer(t, backends.SharedRedis(t).URL(), "--tokens", tokens, "--audit", file), "://")
	store := func(client string) string { return "hasp+http://" + secret[client] + "@" + host }
	name := "nightly/" + filepath.Base(filepath.Dir(dir))

	if code, _, errOut := hasp(t, store("ci"), "run", "--note", "backup", name, "--", "sleep", "0.2"); code != 0 {
		t.Fatal(errOut)
	}
	killed := exec.CommandContext(t.Context(), "hasp", "run", "--store", store("ci"), "--ttl", "1s", name, "--", "sleep", "60")
	if err := killed.Start(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "the second grant", func() bool { return len(auditLines(t, file)) >= 3 })
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if code, _, errOut := hasp(t, store("ci"), "run", "--pass-credentials", "--wait", "30s", name, "--", "sh", "-c",
		`HASP_STORE=$0 hasp release --force --host "$(hostname)" --reason "too long" $HASP_NAME; sleep 60`, store("ops")); code != 76 {
		t.Fatalf("%d, %s", code, errOut)
	}
	var all []auditLine
	testkit.Eventually(t, "all lines", func() bool { all = auditLines(t, file); return len(all) >= 7 })
	self, _ := os.Hostname()
	events := ""
	for _, x := range all {
		events += x.Event + " "
		client := "ci"
		if x.Event == "eviction" {
			client = "ops"
		}
		ends := x.Event == "release" || x.Event == "loss"
		if x.Name != name || x.Client != client || x.Who.Host != self || x.Who.PID == 0 || (x.Held != nil) != ends || (x.Token > 0) == (x.Event == "eviction") ||
			time.Since(x.Time) > time.Hour {
			t.Errorf("%+v", x)
		}
	}
	events = strings.Replace(events, "loss eviction", "eviction loss", 1) // the store may be the first to tell
	if events != "grant release grant loss grant eviction loss " {
		t.Fatalf("the audit has %s", events)
	}
	if x := all[1]; x.Who.Note != "backup" || *x.Held < 200 || *x.Held > 30_000 {
		t.Errorf("a lock that was held for 200 ms: %+v, %d ms", x, *x.Held)
	}
	text, err := os.ReadFile(file)
	for _, s := range secret {
		if err != nil || bytes.Contains(text, []byte(s)) {
			t.Errorf("a token is in the audit, or %v", err)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// cycles locks and unlocks through the server, from four clients, and returns how often in all.
func cycles(t *testing.T, addr string, each int) int {
	t.Helper()
	var all sync.WaitGroup
	for i := range 4 {
		c := testkit.Client(t, "hasp+"+addr)
		all.Go(func() {
			for range each {
				l, err := c.Mutex(fmt.Sprint(t.Name(), i)).Lock(t.Context())
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	testkit.Await(t, "the end of all cycles", done)
	return 4 * each
}

// The file is renamed and the server gets HUP, as by logrotate, while clients lock: no line is lost,
// and HUP ends nothing.
func TestServeAuditRotates(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	addr, p := startServerProcess(t, backends.SharedRedis(t).URL(), "--audit", file)
	stop := make(chan struct{})
	files := []string{file}
	var rotating sync.WaitGroup
	rotating.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			old := fmt.Sprint(file, ".", i)
			if err := os.Rename(file, old); err != nil {
				t.Error(err)
				return
			}
			files = append(files, old)
			_ = p.Signal(syscall.SIGHUP)
			testkit.Eventually(t, "the next file", func() bool { // which the next line makes
				_, err := os.Stat(file)
				select {
				case <-stop:
					return true
				default:
					return err == nil
				}
			})
		}
	})
	n := cycles(t, addr, 500)
	close(stop)
	rotating.Wait()
	if len(files) < 4 {
		t.Fatalf("only %d files", len(files))
	}
	if _, err := os.Stat(file); err != nil { // no line has come after the last rename
		files = files[1:]
	}
	count := map[string]int{}
	testkit.Eventually(t, "all lines", func() bool {
		clear(count)
		for _, x := range auditLines(t, files...) {
			count[x.Event]++
		}
		return count["release"] >= n
	})
	if count["grant"] != n || count["release"] != n || len(count) != 2 {
		t.Errorf("%d cycles, %v", n, count)
	}
}

// A file that takes nothing, a pipe that is not read or a full disk, keeps no lock. The metrics say
// what is missing.
func TestServeAuditBlocksNoLock(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, file := range []string{pipe, "/dev/full"} {
		if _, err := os.Stat(file); err != nil {
			continue // only Linux has it
		}
		addr := startServer(t, backends.SharedRedis(t).URL(), "--audit", file)
		cycles(t, addr, 800) // 6,400 lines: more than the pipe and the server keep
		metrics := ask(t, "GET", addr+"/metrics", "")
		if !strings.Contains(metrics, "\nhasp_serve_audit_missing_total ") || strings.Contains(metrics, "\nhasp_serve_audit_missing_total 0\n") {
			t.Errorf("%s: none is missing, or the metrics lack it:\n%s", file, metrics)
		}
	}
}
