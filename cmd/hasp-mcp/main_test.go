package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/hasplock/hasp"
)

// program is built once for all tests.
var program = sync.OnceValues(func() (string, error) {
	file := filepath.Join(os.TempDir(), fmt.Sprint("hasp-mcp-test-", os.Getpid()))
	out, err := exec.Command("go", "build", "-o", file, ".").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return file, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	if file, err := program(); err == nil {
		os.Remove(file)
	}
	os.Exit(code)
}

// agent is a client with a separate server, as an agent is.
type agent struct {
	t *testing.T
	*mcp.ClientSession
}

func start(t *testing.T, store string) agent {
	t.Helper()
	file, err := program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(file, "-store", store)
	cmd.Stderr = t.Output()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return agent{t, session}
}

// call returns the answer's fields, or the text of its error.
func call[Answer any](a agent, tool string, args map[string]any) (answer Answer, failed string) {
	a.t.Helper()
	result, err := a.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		return answer, err.Error()
	}
	text := result.Content[0].(*mcp.TextContent).Text
	if result.IsError {
		return answer, text
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		a.t.Fatalf("%s: %v", text, err)
	}
	return answer, ""
}

func (a agent) acquire(holder, name string, seconds float64) lock {
	a.t.Helper()
	l, failed := call[lock](a, "acquire", map[string]any{"name": name, "holder": holder, "note": "work of " + holder, "wait_seconds": seconds})
	if failed != "" {
		a.t.Fatalf("acquire %s: %s", name, failed)
	}
	return l
}

func (a agent) wants(what string, l lock, state string, place int) lock {
	a.t.Helper()
	if l.State != state || l.Place != place {
		a.t.Errorf("%s: %+v, not %s at place %d", what, l, state, place)
	}
	return l
}

func (a agent) release(holder, name string) string {
	a.t.Helper()
	_, failed := call[lock](a, "release", map[string]any{"name": name, "holder": holder})
	return failed
}

func storeOf(t *testing.T) string {
	return "file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "locks"))
}

// Two servers, of two agents; each call waits for a moment alone. The place of the first stays over
// its calls: it has the lock before a third that has asked later, although it does not ask when its
// turn comes.
func TestPlacesStay(t *testing.T) {
	store := storeOf(t)
	a, b, c := start(t, store), start(t, store), start(t, store)
	first := a.wants("a", a.acquire("a", "testdb", 20), "held", 0)
	l := b.wants("b", b.acquire("b", "testdb", 0.2), "waiting", 1)
	if len(l.HeldBy) != 1 || !strings.Contains(l.HeldBy[0].Who, "a: work of a") || l.HeldBy[0].Since.IsZero() {
		t.Errorf("held by %+v", l.HeldBy)
	}
	c.wants("c", c.acquire("c", "testdb", 0.2), "waiting", 2)
	b.wants("b again", b.acquire("b", "testdb", 0), "waiting", 1)
	if failed := a.release("a", "testdb"); failed != "" {
		t.Error(failed)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		l, failed := call[lock](c, "who", map[string]any{"name": "testdb", "holder": "c"})
		if failed != "" || time.Now().After(deadline) {
			t.Fatalf("%+v %s", l, failed)
		}
		if len(l.HeldBy) == 1 && strings.Contains(l.HeldBy[0].Who, "b: work of b") {
			c.wants("who", l, "waiting", 1)
			break
		}
	}
	second := b.wants("b at last", b.acquire("b", "testdb", 20), "held", 0)
	if len(second.Token) < len(first.Token) || second.Token <= first.Token && len(second.Token) == len(first.Token) {
		t.Errorf("token %s after %s", second.Token, first.Token)
	}
	b.wants("b once more", b.acquire("b", "testdb", 20), "held", 0)
}

// Subagents share a server. A second holder waits in line, and gives its place up without harm to
// the first.
func TestSubagents(t *testing.T) {
	a := start(t, storeOf(t))
	a.wants("x", a.acquire("x", "git", 20), "held", 0)
	if l := a.acquire("y", "git", 0.1); l.State != "waiting" || len(l.HeldBy) != 1 || !strings.Contains(l.HeldBy[0].Who, "x: work of x") {
		t.Errorf("y: %+v", l)
	}
	if failed := a.release("y", "git"); failed != "" {
		t.Error(failed)
	}
	if failed := a.release("y", "git"); !strings.Contains(failed, `y neither holds "git" nor waits for it`) {
		t.Errorf("a second time: %q", failed)
	}
	all, failed := call[locks](a, "list", map[string]any{"holder": "x"})
	if failed != "" || len(all.Locks) != 1 || all.Locks[0].State != "held" || len(all.Locks[0].Waiting) != 0 {
		t.Errorf("%+v %s", all, failed)
	}
	waited := make(chan lock)
	go func() { waited <- a.acquire("z", "git", 60) }()
	if failed := a.release("x", "git"); failed != "" {
		t.Error(failed)
	}
	a.wants("z", <-waited, "held", 0)
}

// Locks and places end with standard input.
func TestEndOfInput(t *testing.T) {
	store := storeOf(t)
	a, b, c := start(t, store), start(t, store), start(t, store)
	a.acquire("a", "port/8080", 20)
	b.wants("b", b.acquire("b", "port/8080", 0.1), "waiting", 1)
	c.wants("c", c.acquire("c", "port/8080", 0.1), "waiting", 2)
	for _, gone := range []agent{b, a} {
		if err := gone.Close(); err != nil {
			t.Error(err)
		}
	}
	c.wants("c", c.acquire("c", "port/8080", 60), "held", 0)
	if l, failed := call[lock](c, "who", map[string]any{"name": "port/8080", "holder": "c"}); failed != "" || len(l.HeldBy) != 1 || len(l.Waiting) != 0 {
		t.Errorf("%+v %s", l, failed)
	}
}

// A lock that was taken away is told: by who, by acquire, which does not take it anew in the same
// call, and by release.
func TestLoss(t *testing.T) {
	store := storeOf(t)
	operator, err := hasp.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	a := start(t, store)
	lose := func() {
		t.Helper()
		a.wants("a", a.acquire("a", "n", 20), "held", 0)
		q, err := operator.Inspect(t.Context(), "n")
		if err != nil || len(q.Holders) != 1 {
			t.Fatal(q, err)
		}
		if err := operator.Evict(t.Context(), "n", q.Holders[0].ID, "for the test"); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
			l, failed := call[lock](a, "who", map[string]any{"name": "n", "holder": "a"})
			if failed != "" || time.Now().After(deadline) {
				t.Fatalf("%+v %s", l, failed)
			}
			if l.State == "lost" {
				break
			}
		}
	}
	lose()
	if l, failed := call[lock](a, "acquire", map[string]any{"name": "n", "holder": "a"}); !strings.Contains(failed, "lost") || !strings.Contains(failed, "acquire it again") {
		t.Errorf("%+v %q", l, failed)
	}
	lose()
	if failed := a.release("a", "n"); !strings.Contains(failed, "lost") {
		t.Errorf("release: %q", failed)
	}
}

func TestBadInput(t *testing.T) {
	a := start(t, storeOf(t))
	for what, args := range map[string]map[string]any{
		"name": {"name": ""}, "seconds": {"name": "a", "wait_seconds": 1000}, "before": {"name": "a", "wait_seconds": -1},
		"note": {"name": "a", "note": strings.Repeat("n", 5000)}, "type": {"name": 7}, "other": {"name": "a", "nmae": "b"},
	} {
		if l, failed := call[lock](a, "acquire", args); failed == "" {
			t.Errorf("%s: %+v", what, l)
		}
	}
	a.wants("and then", a.acquire("a", "a", 20), "held", 0)
}

// Without a store it is that of the repository, with any path.
func TestOfRepository(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a #1%2f? b")
	if out, err := exec.Command("git", "init", "-q", dir).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	t.Chdir(dir)
	for _, store := range []string{"", "git"} {
		start(t, store).acquire("a", "n", 20)
		if _, err := os.Stat(filepath.Join(dir, ".git", "hasp")); err != nil {
			t.Error(err)
		}
	}
	t.Chdir(t.TempDir())
	if err := run(t.Context(), "", 0); err == nil || !strings.Contains(err.Error(), "name a store") {
		t.Errorf("outside: %v", err)
	}
}
