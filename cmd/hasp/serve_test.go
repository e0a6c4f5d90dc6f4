//go:build unix && !noserve && !nohttp && !noredis

package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// startServer starts hasp serve, and returns its address with the scheme. It must end with 0 when it is
// told to.
func startServer(t *testing.T, store string, args ...string) (addr string) {
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
	return addr
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

// The script of the documentation locks, in many processes at once: none overwrites another's number.
func TestServeScript(t *testing.T) {
	for _, need := range []string{"curl", "jq"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skip("no " + need)
		}
	}
	server := startServer(t, backends.SharedRedis(t).URL())
	dir := t.TempDir()
	number, file := filepath.Join(dir, "number"), filepath.Join(dir, "locked.sh")
	for name, text := range map[string]string{number: "0\n", file: script(t)} {
		if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const n = 8
	ended := make(chan error, n)
	for range n {
		go func() {
			c := exec.CommandContext(t.Context(), "sh", file, "nightly/"+filepath.Base(dir), "sh", "-c", `i=$(cat "$0"); sleep 0.05; echo $((i + 1)) > "$0"; test -n "$HASP_TOKEN"`, number)
			c.Env = append(os.Environ(), "HASP_SERVER="+server)
			out, err := c.CombinedOutput()
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
	resp, err := http.Get(server + "/v1/names?prefix=nightly/" + filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "{\"names\":[]}\n" {
		t.Errorf("left: %s, %v", b, err)
	}
}
