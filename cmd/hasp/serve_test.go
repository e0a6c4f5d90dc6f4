//go:build unix && !noserve && !nohttp && !noredis

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/httpapi"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// startServer starts hasp serve, and returns its address with the scheme. It must end with 0 when it is
// told to.
func startServer(t *testing.T, store string, args ...string) (addr string) {
	t.Helper()
	addr, _ = startServerProcess(t, store, args...)
	return addr
}

func startServerProcess(t *testing.T, store string, args ...string) (addr string, p *os.Process) {
	t.Helper()
	c := exec.Command("hasp", append([]string{"serve", "--store", store, "--listen", "127.0.0.1:0", "--drain", "1s"}, args...)...)
	c.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stderr)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("hasp serve: %q, %v", first, err)
	}
	rest := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(lines) // until it ends
		rest <- string(all)
	}()
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		log := testkit.Await(t, "the end of hasp serve", rest)
		if err := c.Wait(); err != nil {
			t.Errorf("hasp serve: %v", err)
		}
		if !strings.Contains(log, "msg=request") || strings.Contains(log, "nightly") {
			t.Errorf("no log of requests, or it shows the name of a lock:\n%s", log)
		}
	})
	_, addr, ok := strings.Cut(strings.TrimSpace(first), " at ")
	if !ok {
		t.Fatalf("hasp serve says %q", first)
	}
	return addr, c.Process
}

// script returns the shell script that docs/SERVE.md shows.
func script(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/SERVE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(page), "```sh\n")
	text, _, end := strings.Cut(text, "```\n")
	if !ok || !end || strings.Count(text, "\n") > 25 {
		t.Fatalf("the script of the page: %q", text)
	}
	return text
}

// serveScript starts hasp serve on Redis, and puts the script of the page into a file. command is one that runs it, under a lock that
// no other test has.
func serveScript(t *testing.T, args ...string) (server, name string, command func(args ...string) *exec.Cmd) {
	t.Helper()
	for _, need := range []string{"curl", "jq"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skip("no " + need)
		}
	}
	server = startServer(t, backends.SharedRedis(t).URL(), args...)
	dir := t.TempDir()
	file := filepath.Join(dir, "locked.sh")
	if err := os.WriteFile(file, []byte(script(t)), 0o755); err != nil {
		t.Fatal(err)
	}
	name = "nightly/" + filepath.Base(filepath.Dir(dir))
	return server, name, func(args ...string) *exec.Cmd {
		c := exec.CommandContext(t.Context(), "sh", append([]string{file, name}, args...)...)
		c.Env = append(os.Environ(), "HASP_SERVER="+server)
		return c
	}
}

// ask sends a request to hasp serve, and returns the answer's body.
func ask(t *testing.T, method, url, body string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s, %s, %v", method, url, resp.Status, b, err)
	}
	return string(b)
}

// The script of the documentation locks, in many processes at once: none overwrites another's number.
func TestServeScript(t *testing.T) {
	server, name, command := serveScript(t)
	number := filepath.Join(t.TempDir(), "number")
	if err := os.WriteFile(number, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const n = 8
	ended := make(chan error, n)
	for range n {
		go func() {
			out, err := command("sh", "-c", `i=$(cat "$0"); sleep 0.05; echo $((i + 1)) > "$0"; test -n "$HASP_TOKEN"`, number).CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			ended <- err
		}()
	}
	for range n {
		<-ended
	}
	if b, err := os.ReadFile(number); err != nil || strings.TrimSpace(string(b)) != "8" {
		t.Errorf("eight have added one, and the number is %q, %v", b, err)
	}
	if b := ask(t, "GET", server+"/v1/names?prefix="+name, ""); b != "{\"names\":[]}\n" {
		t.Errorf("left: %s", b)
	}
}

// A keep-alive that is answered well can tell of a loss. The script ends its command then, and does not let it work beside the next
// holder until it ends by itself.
func TestServeScriptIsEvicted(t *testing.T) {
	testtier.Long(t) // a keep-alive each 15 seconds
	server, name, command := serveScript(t)
	c := command("sh", "-c", "echo holds; exec sleep 600")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holds\n" {
		t.Fatalf("the command says %q, %v", line, err)
	}
	var queue httpapi.Queue
	if err := json.Unmarshal([]byte(ask(t, "GET", server+"/v1/queue?name="+name, "")), &queue); err != nil || len(queue.Entries) != 1 {
		t.Fatalf("the queue: %+v, %v", queue, err)
	}
	evict, err := json.Marshal(httpapi.EvictEntry{Name: name, Entry: queue.Entries[0].ID})
	if err != nil {
		t.Fatal(err)
	}
	ask(t, "POST", server+"/v1/evict", string(evict))
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	if err := testkit.Await(t, "the end of the script after its next keep-alive", ended); err == nil {
		t.Error("the script has ended as if the command had done its work")
	}
}

// A refusal that stays ends the script at once.
func TestServeScriptIsRefused(t *testing.T) {
	server, name, command := serveScript(t)
	session := ask(t, "POST", server+"/v1/session", `{"ttl_ms":60000}`)
	var opened httpapi.Session
	if err := json.Unmarshal([]byte(session), &opened); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), "PUT", server+"/v1/locks/1", strings.NewReader(`{"name":"`+name+`","kind":"semaphore","capacity":3,"units":1}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Hasp-Session", opened.Session)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("a semaphore of that name: %s", resp.Status)
	}
	out, err := command("true").CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 69 {
		t.Errorf("a mutex beside a semaphore: %v, want exit status 69: %s", err, out)
	}
}

// A run inside a run of the same lock would wait for itself, also where the server has named the entry and the environment has another id.
func TestNestedThroughServe(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	token, err := exec.Command("hasp", "serve", "token", "--tokens", tokens, "--rights", "look,lock", "runner").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, host, _ := strings.Cut(startServer(t, backends.SharedRedis(t).URL(), "--tokens", tokens), "://")
	store := "hasp+http://" + strings.TrimSpace(string(token)) + "@" + host
	c := exec.CommandContext(t.Context(), "hasp", "run", "--store", store, "--pass-credentials", "nightly", "--", "hasp", "run", "-w", "2s", "nightly", "--", "true")
	out, err := c.CombinedOutput()
	if c.ProcessState.ExitCode() != 78 || !strings.Contains(string(out), "would wait for its own end") {
		t.Errorf("%v: %s", err, out)
	}
}
