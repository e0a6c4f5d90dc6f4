package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// action has the content of action.yml. The test treats it as GitHub's runner does a composite
// Action: it sets the variables of each step, and has bash run the step.
type action struct {
	Inputs map[string]struct {
		Required bool
		Default  string
	}
	Runs struct {
		Using string
		Steps []struct {
			ID, Shell, Run string
			Env            map[string]string
		}
	}
}

var expression = regexp.MustCompile(`\$\{\{ ([a-z._-]+) \}\}`)

// use runs the Action, and returns what it prints and its exit code.
func (a *action) use(t *testing.T, with map[string]string) (out string, code int) {
	t.Helper()
	dir, err := filepath.Abs("action")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{"github.action_path": dir, "github.repository": "ana/site", "github.run_id": "7"}
	value := func(text string) string {
		return expression.ReplaceAllStringFunc(text, func(e string) string {
			name := expression.FindStringSubmatch(e)[1]
			got, ok := known[name]
			if !ok {
				t.Errorf("action.yml uses %s, which there is not", name)
			}
			return got
		})
	}
	for name, in := range a.Inputs {
		given, ok := with[name]
		if !ok && in.Required {
			t.Fatalf("the test does not give %s", name)
		} else if !ok {
			given = value(in.Default)
		}
		known["inputs."+name] = given
	}
	temp := t.TempDir()
	for i, step := range a.Runs.Steps {
		file, outputs := filepath.Join(temp, fmt.Sprint("step", i)), filepath.Join(temp, fmt.Sprint("outputs", i))
		if err := errors.Join(os.WriteFile(file, []byte(value(step.Run)), 0o600), os.WriteFile(outputs, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(step.Shell, "--noprofile", "--norc", "-eo", "pipefail", file)
		c.Env = append(os.Environ(), "GITHUB_OUTPUT="+outputs, "RUNNER_TEMP="+temp)
		for name, text := range step.Env {
			c.Env = append(c.Env, name+"="+value(text))
		}
		said, err := c.CombinedOutput()
		out += string(said)
		if code = c.ProcessState.ExitCode(); err != nil {
			return out, code
		}
		told, err := os.ReadFile(outputs)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(told)) {
			name, text, _ := strings.Cut(strings.TrimSpace(line), "=")
			known["steps."+step.ID+".outputs."+name] = text
		}
	}
	return out, code
}

// server starts hasp serve with a token for deploy/, and returns its URL with that.
func server(t *testing.T, hasp string) (store, token string) {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	token = strings.TrimSpace(do(t, hasp, "serve", "token", "--tokens", tokens, "--rights", "look,lock", "--prefix", "deploy/", "ci"))
	redis := backends.StartRedis(t, backends.RedisOptions{})
	c := exec.Command(hasp, "serve", "--store", "redis://"+redis.Addr, "--listen", "127.0.0.1:0", "--tokens", tokens, "--drain", "1s")
	stderr, err := c.StderrPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("hasp serve: %v", err)
		}
	})
	lines := bufio.NewReader(stderr)
	first, err := lines.ReadString('\n')
	_, addr, ok := strings.Cut(strings.TrimSpace(first), " at http://")
	if err != nil || !ok {
		t.Fatalf("hasp serve says %q, %v", first, err)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }() // until it ends
	return "hasp+http://" + token + "@" + addr, token
}

// The Action's steps, as shell, with an archive as a release has it and a real server.
func TestAction(t *testing.T) {
	need(t, "bash", "sha256sum", "awk")
	text, err := os.ReadFile("action/action.yml")
	a := &action{}
	if err == nil {
		err = yaml.Unmarshal(text, a)
	}
	if err != nil || a.Runs.Using != "composite" || len(a.Runs.Steps) != 2 {
		t.Fatalf("action.yml: %v, %+v", err, a)
	}
	for _, s := range a.Runs.Steps {
		if strings.Contains(s.Run, "${{") {
			t.Errorf("a value stands in a script, which runs it: %s", s.Run)
		}
	}
	release, hasp := t.TempDir(), filepath.Join(t.TempDir(), "hasp")
	do(t, "go", "build", "-C", "../../cmd/hasp", "-tags", "grpcnotrace", "-o", hasp, ".")
	base := fmt.Sprintf("hasp_%s_%s_%s", strings.TrimPrefix(version, "v"), runtime.GOOS, runtime.GOARCH)
	archive := base + ".tar.gz"
	if err := writeArchive(filepath.Join(release, archive), base, []file{{"usr/bin/hasp", hasp, nil, 0o755}}, time.Now()); err != nil {
		t.Fatal(err)
	}
	do(t, "sh", "-c", "cd '"+release+"' && sha256sum * >SHA256SUMS")
	store, token := server(t, hasp)
	dir := t.TempDir()
	with := func(extra ...string) map[string]string {
		in := map[string]string{"lock": "deploy/prod", "store": store, "release": release, "run": "true"}
		for i := 0; i < len(extra); i += 2 {
			in[extra[i]] = extra[i+1]
		}
		return in
	}
	expect := func(what string, want int, in map[string]string, texts ...string) {
		t.Helper()
		out, code := a.use(t, in)
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("%s: no %q in\n%s", what, text, out)
			}
		}
		if code != want || strings.Contains(out, token) {
			t.Errorf("%s: exit code %d, not %d, or it shows the token\n%s", what, code, want, out)
		}
	}
	expect("commands", 0, with("run", "x='a b'\necho \"<$x> $HASP_NAME ${HASP_TOKEN:+fenced}\"; echo \"store $HASP_STORE\""), "<a b> deploy/prod fenced\n", "store hasp+http://127.0.0.1:")
	expect("a command that fails", 3, with("run", "(exit 3) | cat\necho not reached"))
	expect("a name that looks like a flag", 78, with("lock", "--no-wait", "wait", "300ms"), "has not the right to lock")
	expect("too long", 124, with("run", "sleep 1000", "max-hold", "300ms"))
	expect("no store", 78, with("store", ""))

	// One at a time: the second waits, and is seen with its note.
	seen, going := filepath.Join(dir, "seen"), filepath.Join(dir, "go")
	first := make(chan string, 1)
	go func() {
		out, code := a.use(t, with("run", "touch '"+seen+"'; until [ -e '"+going+"' ]; do sleep 0.05; done; rm '"+seen+"'", "note", "the first"))
		first <- fmt.Sprint(code, " ", out)
	}()
	testkit.Eventually(t, "the first step", func() bool { _, err := os.Stat(seen); return err == nil })
	expect("busy", 75, with("wait", "200ms"), "busy: ", "the first")
	second := make(chan string, 1)
	go func() {
		out, code := a.use(t, with("run", "test ! -e '"+seen+"'"))
		second <- fmt.Sprint(code, " ", out)
	}()
	testkit.Eventually(t, "the second in the queue", func() bool {
		return strings.Contains(do(t, hasp, "who", "--store", store, "deploy/prod"), "ana/site 7")
	})
	if err := os.WriteFile(going, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, done := range []chan string{first, second} {
		if said := testkit.Await(t, "the end of a step", done); !strings.HasPrefix(said, "0 ") {
			t.Errorf("%s", said)
		}
	}

	// A file that is not the one of the list is not run, nor is one that is not in it.
	sums, err := os.ReadFile(filepath.Join(release, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ spoil, sums, says string }{
		"changed":         {"x", string(sums), "is not the file that SHA256SUMS names"},
		"not in the list": {"", strings.ReplaceAll(string(sums), archive, "other.tar.gz"), "does not have " + archive},
		"no list":         {"", "", "does not have " + archive},
	} {
		bad := t.TempDir()
		do(t, "cp", filepath.Join(release, archive), bad)
		content, err := os.ReadFile(filepath.Join(bad, archive))
		err = errors.Join(err, os.WriteFile(filepath.Join(bad, archive), append(content, c.spoil...), 0o600), os.WriteFile(filepath.Join(bad, "SHA256SUMS"), []byte(c.sums), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		expect(what, 1, with("release", bad, "run", "echo it runs"), c.says)
	}
	expect("no archive", 1, with("release", t.TempDir()), "has not one archive")
}
