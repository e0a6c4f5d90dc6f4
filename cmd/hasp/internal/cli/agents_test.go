//go:build unix

package cli

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/testtier"
	"golang.org/x/sys/unix"
)

// agent NAME ROUNDS LIMIT WORK [plain] is a coding agent in the working directory. Each of its calls
// is a new shell in a new session, and is killed with all that is in its session after LIMIT. It
// takes testdb, works in two calls of WORK each, and gives it back. In "journal" it notes when it has
// asked and when it has got the lock, and in "killed" each call that was killed. With "plain" it asks
// by hasp run, as before there was hold --background. Without any of it, it executes what it is told.
func agent() {
	name, limit := os.Args[1], duration{}
	if len(os.Args) == 2 {
		(&agentLife{name: name}).obey()
		return
	}
	rounds, err := strconv.Atoi(os.Args[2])
	if err != nil || limit.Set(os.Args[3]) != nil {
		os.Exit(99)
	}
	a := &agentLife{name, limit.d}
	for range rounds {
		if len(os.Args) > 5 {
			a.plain()
		} else {
			a.round(os.Args[4])
		}
	}
}

// obey executes calls, each a limit and a script in one line, and says how they end.
func (a *agentLife) obey() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		limit, script, _ := strings.Cut(in.Text(), " ")
		var err error
		if a.limit, err = time.ParseDuration(limit); err != nil {
			os.Exit(99)
		}
		fmt.Println(a.call(script))
	}
}

type agentLife struct {
	name  string
	limit time.Duration
}

// call returns the exit code, or -1 for a call that was killed.
func (a *agentLife) call(script string) int {
	c := exec.Command("sh", "-c", script+"; exit $?")
	c.Stderr, c.SysProcAttr = os.Stderr, &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		os.Exit(99)
	}
	kill := time.AfterFunc(a.limit, func() { _ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	_ = c.Wait()
	if kill.Stop() {
		return c.ProcessState.ExitCode()
	}
	a.write("killed", script)
	return -1
}

func (a *agentLife) write(file, word string) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		_, err = fmt.Fprintln(f, word, a.name)
	}
	if err != nil {
		os.Exit(99)
	}
	f.Close()
}

// one keeps the order of what several agents ask and note.
func (a *agentLife) one(do func()) {
	f, err := os.OpenFile("order", os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil || unix.Flock(int(f.Fd()), unix.LOCK_EX) != nil {
		os.Exit(99)
	}
	do()
	f.Close()
}

func (a *agentLife) must(code, want int, what string) {
	if code != want {
		fmt.Fprintf(os.Stderr, "%s: %s ends with %d\n", a.name, what, code)
		os.Exit(98)
	}
}

func (a *agentLife) round(work string) {
	code := -1
	a.one(func() {
		for code == -1 {
			code = a.call("hasp hold --background --pid $PPID --note " + a.name + " testdb")
		}
		a.write("journal", "asked")
	})
	for code == 75 || code == -1 {
		code = a.call("hasp who --mine --wait 10m testdb")
	}
	a.must(code, 0, "the wait")
	a.write("journal", "got")
	a.must(a.call("mkdir busy && sleep "+work), 0, "the work")
	a.must(a.call("hasp who --mine testdb && sleep "+work+" && rmdir busy"), 0, "the rest of the work")
	a.must(a.call("hasp release --mine testdb"), 0, "the release")
}

// plain asks until one call lives long enough.
func (a *agentLife) plain() {
	a.write("journal", "asked")
	for a.call("hasp run --with-parent testdb -- sh -c 'echo got "+a.name+" >>journal'") != 0 {
	}
}

// Four agents, whose calls are limited and have a new shell each: each gets the lock in the order in
// which it has asked, although no call lives until its turn.
func TestAgents(t *testing.T) {
	t.Parallel()
	testAgents(t, "1500ms", "0.8")
}

// The same with the limit that agents have.
func TestAgentsWithCallsOf20Seconds(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	testAgents(t, "20s", "7")
}

func testAgents(t *testing.T, limit, work string) {
	t.Helper()
	dir := t.TempDir()
	var agents []*exec.Cmd
	for _, name := range []string{"a", "b", "c", "d"} {
		agents = append(agents, startAgent(t, dir, name, "2", limit, work))
	}
	for i, a := range agents {
		if err := a.Wait(); err != nil {
			t.Errorf("agent %d: %v\n%s", i, err, a.Stderr)
		}
	}
	asked, got := journal(t, dir)
	if len(asked) != 8 || !slices.Equal(asked, got) {
		t.Errorf("asked in the order %v, got it in %v", asked, got)
	}
	if killed, _ := os.ReadFile(filepath.Join(dir, "killed")); strings.Count(string(killed), "who --mine --wait") < 4 {
		t.Errorf("too few calls were killed while they waited: this test has shown little\n%s", killed)
	}
	if out, err := exec.Command("hasp", "ls", "--json", "--store", "file://"+dir+"/locks").Output(); err != nil || len(out) > 0 {
		t.Errorf("left: %s%v", out, err)
	}
}

// The control: an agent that waits in a call leaves the queue with it, and who asked later goes
// first.
func TestAgentsThatWaitInACall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	holder := exec.Command("hasp", "hold", "--store", "file://"+dir+"/locks", "testdb")
	in, err := holder.StdinPipe()
	if err == nil {
		err = holder.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, dir, "testdb", "holds")
	first := startAgent(t, dir, "first", "1", "1s", "0", "plain")
	until(t, dir, "testdb", "waits")
	second := startAgent(t, dir, "second", "1", "1m", "0")
	until(t, dir, "testdb", "second")
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if killed, _ := os.ReadFile(filepath.Join(dir, "killed")); len(killed) > 0 {
			break
		}
	}
	in.Close()
	for _, c := range []*exec.Cmd{holder, first, second} {
		if err := c.Wait(); err != nil {
			t.Errorf("%v: %v", c.Args, err)
		}
	}
	if asked, got := journal(t, dir); !slices.Equal(asked, []string{"first", "second"}) || !slices.Equal(got, []string{"second", "first"}) {
		t.Errorf("asked in the order %v, got it in %v", asked, got)
	}
}

// A background holder that has ended since its socket was seen had nothing any more: what the others
// hold counts, and without any, nothing is held.
func TestMineBesideOneThatHasEnded(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "mine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", dir+"/held")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			fmt.Fprintln(conn, `{"format":1,"state":"held","name":"x"}`)
			conn.Close()
		}
	}()
	for _, c := range []struct {
		sockets, names []string
		want           int
	}{
		{[]string{"ended", "held"}, nil, 0}, {[]string{"ended", "held"}, []string{"x"}, 0}, {[]string{"ended", "held"}, []string{"y"}, 76},
		{[]string{"ended"}, nil, 76}, {[]string{"ended"}, []string{"x"}, 76},
	} {
		of := holders{whose: "process 1", background: true}
		for _, name := range c.sockets {
			of.sockets = append(of.sockets, dir+"/"+name)
		}
		a := &app{streams: streams{stdout: new(strings.Builder), stderr: new(strings.Builder)}}
		code := 0
		if err := a.mine(of, hold.AskState, c.names, false, 0); err != nil {
			code = exit.Of(err).Code
		}
		if code != c.want {
			t.Errorf("%v, asked for %v: %d", c.sockets, c.names, code)
		}
	}
}

func startAgent(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	c := newAgent(dir, args...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill() })
	return c
}

func newAgent(dir string, args ...string) *exec.Cmd {
	c := exec.Command("agent", args...)
	c.Dir, c.Stderr = dir, new(strings.Builder)
	c.Env = append(os.Environ(), "WORK="+dir, "HASP_STORE=file://"+dir+"/locks", "GORACE=atexit_sleep_ms=0")
	return c
}

func until(t *testing.T, dir, name, text string) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if out, _ := exec.Command("hasp", "who", "--store", "file://"+dir+"/locks", name).Output(); strings.Contains(string(out), text) {
			return
		}
	}
	t.Fatalf("%s never shows %q", name, text)
}

func journal(t *testing.T, dir string) (asked, got []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "journal"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		switch word, name, _ := strings.Cut(strings.TrimSpace(line), " "); word {
		case "asked":
			asked = append(asked, name)
		case "got":
			got = append(got, name)
		}
	}
	return asked, got
}
