// Package rolling_test runs the hasp of the commit that gave the formats their numbers beside that of
// this tree, on one store of each kind.
package rolling_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/serverprocess"
	"github.com/hasplock/hasp/internal/testkit"
)

// firstNumbers is a file that came with the commit with which "old" is built: the first where each
// format has its number. Not by its hash, which is another in a history that was written anew.
const firstNumbers = "driver/format.go"

// program is a hasp, and the store as its users name it.
type program struct{ name, file, store string }

var (
	oldTree = sync.OnceValues(extractOld)
	oldHasp = sync.OnceValues(func() (string, error) {
		dir, err := oldTree()
		if err != nil {
			return "", err
		}
		return build(dir, "old")
	})
	newHasp = sync.OnceValues(func() (string, error) { return build(root(), "new") })
	// later is this tree, with each format's number raised.
	laterHasp = sync.OnceValues(buildLater)
)

func built(t *testing.T, name string, hasp func() (string, error)) program {
	t.Helper()
	file, err := hasp()
	if err != nil {
		t.Fatal(err)
	}
	return program{name: name, file: file}
}

// root is the top of this tree: tests run in the directory of their package.
func root() string {
	dir, _ := filepath.Abs("../..") // fails where there is no working directory
	return dir
}

func build(dir, name string, flags ...string) (string, error) {
	to, err := serverprocess.NewDir(name, nil)
	if err != nil {
		return "", err
	}
	file := filepath.Join(to, "hasp")
	c := exec.Command("go", append(append([]string{"build"}, flags...), "-tags", "grpcnotrace", "-o", file, ".")...)
	c.Dir = filepath.Join(dir, "cmd", "hasp")
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build of %s: %w\n%s", name, err, out)
	}
	return file, nil
}

func extractOld() (string, error) {
	dir, err := serverprocess.NewDir("old", nil)
	if err != nil {
		return "", err
	}
	commit, err := git("log", "--diff-filter=A", "--format=%H", "--reverse", "--", firstNumbers)
	if err != nil {
		return "", err
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil {
		return "", err
	}
	first, _, _ := strings.Cut(commit.String(), "\n")
	if first == "" || shallow.String() != "false\n" {
		return "", fmt.Errorf("this test needs the commit that added %s: git fetch --unshallow", firstNumbers)
	}
	text, err := git("archive", first)
	if err != nil {
		return "", err
	}
	extract := exec.Command("tar", "-x", "-C", dir)
	extract.Stdin = text
	if out, err := extract.CombinedOutput(); err != nil {
		return "", fmt.Errorf("tar: %w\n%s", err, out)
	}
	return dir, nil
}

func git(args ...string) (*bytes.Buffer, error) {
	c := exec.Command("git", args...)
	c.Dir = root()
	var text, problem bytes.Buffer
	c.Stdout, c.Stderr = &text, &problem
	if err := c.Run(); err != nil {
		return nil, fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, &problem)
	}
	return &text, nil
}

// nextNumbers are the places that have the numbers, and what they would be in the next version.
var nextNumbers = []struct{ file, now, next string }{
	{"redislock/internal/quarantine/guard.go", "const Format = 4", "const Format = 5"},
	{"redislock/errors.go", "const queueFormat = 2", "const queueFormat = 3"},
	{"redislock/list.go", "hasp2", "hasp3"},
	{"redislock/queue/enterstart.lua", "hasp2", "hasp3"},
	{"redislock/queue/front.lua", "hasp2", "hasp3"},
	{"redislock/queue/leavestart.lua", "hasp2", "hasp3"},
	{"redislock/queue/queue.lua", "hasp2", "hasp3"},
	{"redislock/queue/renew.lua", "hasp2", "hasp3"},
	{"filelock/prepare.go", `format       = formatBegin + "2\n"`, `format       = formatBegin + "3\n"`},
	{"filelock/prepare.go", "formatNumber = 2", "formatNumber = 3"},
	{"etcdlock/format.go", "const format = 1", "const format = 2"},
	{"zklock/format.go", "format      = 1", "format      = 2"},
	{"caslock/record.go", "const format = 1", "const format = 2"},
	{"pglock/schema.go", "const oldest = 2", "const oldest = 3"},
	{"mysqllock/schema.go", "const oldest = 2", "const oldest = 3"},
	{"mysqllock/schema/2.sql", "schema (version) VALUES (2)", "schema (version) VALUES (3)"},
}

func buildLater() (string, error) {
	dir, err := serverprocess.NewDir("later", nil)
	if err != nil {
		return "", err
	}
	replace, texts := map[string]string{}, map[string]string{}
	for i, n := range nextNumbers {
		path := filepath.Join(root(), n.file)
		if texts[path] == "" {
			b, err := os.ReadFile(path)
			if err != nil {
				return "", err
			}
			texts[path] = string(b)
		}
		if !strings.Contains(texts[path], n.now) {
			return "", fmt.Errorf("%s no longer says %q: nextNumbers must follow", n.file, n.now)
		}
		texts[path] = strings.ReplaceAll(texts[path], n.now, n.next)
		replace[path] = filepath.Join(dir, fmt.Sprint(i, filepath.Ext(path)))
		if err := os.WriteFile(replace[path], []byte(texts[path]), 0o600); err != nil {
			return "", err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	return build(root(), "later", "-overlay", file)
}

// command is a call of the program that ends with the test.
func (p program) command(t *testing.T, args ...string) *exec.Cmd {
	c := exec.CommandContext(t.Context(), p.file, args...)
	c.Env = []string{
		"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"), "HASP_STORE=" + p.store,
		"AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "AWS_EC2_METADATA_DISABLED=true",
	}
	return c
}

// ends runs a call to its end, and returns its exit code and all that it has said.
func (p program) ends(t *testing.T, args ...string) (int, string) {
	t.Helper()
	c := p.command(t, args...)
	ends := time.AfterFunc(testkit.Patience, func() { _ = c.Process.Kill() })
	defer ends.Stop()
	out, err := c.CombinedOutput()
	exit := new(exec.ExitError)
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %q: %v", p.name, args, err)
	}
	return max(0, exit.ExitCode()), string(out)
}

// holder is a process that says its token when it holds "a/b", and ends with its input.
type holder struct {
	name  string
	c     *exec.Cmd
	end   io.WriteCloser
	said  bytes.Buffer
	began chan string
}

// begin starts a hasp run of the lock "a/b", which waits if it is held.
func (p program) begin(t *testing.T) *holder {
	t.Helper()
	return begin(t, p.name, p.command(t, "run", "--wait", "1m", "a/b", "--", "sh", "-c", `echo "token ${HASP_TOKEN:-0}"; cat >/dev/null`))
}

func begin(t *testing.T, name string, c *exec.Cmd) *holder {
	t.Helper()
	h := &holder{name: name, c: c, began: make(chan string, 1)}
	h.c.Stderr = &h.said
	out, err := h.c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if h.end, err = h.c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := h.c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		line, _ := bufio.NewReader(out).ReadString('\n') // nothing, if it ends without the lock
		h.began <- line
	}()
	return h
}

// holds returns the token when it holds the lock.
func (h *holder) holds(t *testing.T) (token int64) {
	t.Helper()
	line := testkit.Await(t, h.name+" to hold the lock", h.began)
	if _, err := fmt.Sscanf(line, "token %d", &token); err != nil {
		_ = h.c.Wait()
		t.Fatalf("%s: %q, %s", h.name, line, &h.said)
	}
	return token
}

// release ends the process.
func (h *holder) release(t *testing.T) {
	t.Helper()
	_ = h.end.Close()
	if err := h.c.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s", h.name, err, &h.said)
	}
}
