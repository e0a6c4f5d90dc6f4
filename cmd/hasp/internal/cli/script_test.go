//go:build unix

package cli

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	_ "github.com/hasplock/hasp/filelock"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// The scripts run real processes on a real file store. This test binary is the `hasp` they
// run.
// The scripts wait for processes and hardly compute: a -parallel on the command line wins.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(max(6, runtime.GOMAXPROCS(0)))); err != nil {
		panic(err) // package testing has renamed it
	}
	testscript.Main(m, map[string]func(){
		"hasp":     inScript,
		"victim":   victim,
		"neglect":  neglect,
		"headless": headless,
		"agent":    agent,
		"asroot":   asroot,
		"oldhasp":  oldKernel,
	})
}

// inScript is hasp with the configuration of its script alone. A busy machine needs longer than a
// person at the shell has: TestCompletionIsBounded tests that bound.
func inScript() {
	completionBound = patience
	settings.SystemFile = os.Getenv("WORK") + "/etc/hasp/config"
	os.Exit(Main())
}

func TestScripts(t *testing.T) {
	heedSignals(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	keepDescriptors()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			e.Setenv("HASP_STORE", "file://"+filepath.Join(e.WorkDir, "locks"))
			self, err := os.Executable()
			if err != nil {
				return err
			}
			e.Setenv("TEST_BINARY", self)
			e.Setenv("XDG_CONFIG_HOME", filepath.Join(e.WorkDir, ".config"))
			e.Setenv("GORACE", "atexit_sleep_ms=0") // a second per process, which is not what we measure
			e.Values[started{}] = map[string]*process{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": cmdCode, "start": cmdStart, "startpty": cmdStartPTY, "sig": cmdSig, "type": cmdType,
			"close": cmdClose, "ends": cmdEnds, "until": cmdUntil, "gone": cmdGone, "prompt": cmdPrompt,
			"startpipes": cmdStartPipes, "fill": cmdFill, "drain": cmdDrain, "guardian": cmdGuardian, "open": cmdOpen,
		},
		Condition: condition,
	})
}

// heedSignals has the processes that the scripts start die of signals that we ignore, as under
// nohup or behind a shell's &: what is ignored is inherited, what is caught is not.
func heedSignals(sigs ...os.Signal) {
	for _, s := range sigs {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// keepDescriptors keeps inherited descriptors (a lock's, say) from the processes that the tests
// start: a number that was not opened must stay unopened.
func keepDescriptors() {
	for fd := 3; fd < 64; fd++ {
		unix.CloseOnExec(fd)
	}
}

// patience is how long a script waits for what must happen. Only a failure takes it.
const patience = testkit.Patience

// prompt is less than the time after which a waiter in the file store looks by itself (half a
// minute, at least). It does not measure how fast a hand-over is: a benchmark does.
const prompt = 20 * time.Second

type started struct{}

// process is one that a script has started in the background.
type process struct {
	cmd   *exec.Cmd
	input io.WriteCloser // its standard input, or the terminal it runs on
	pipes *pipes         // of startpipes
	done  chan struct{}
	ended time.Time
}

func processes(ts *testscript.TestScript) map[string]*process {
	return ts.Value(started{}).(map[string]*process)
}

func find(ts *testscript.TestScript, name string) *process {
	p := processes(ts)[name]
	if p == nil {
		ts.Fatalf("nothing was started as %q", name)
	}
	return p
}

// need fails a script that calls a command wrongly, so that a typing mistake cannot pass.
func need(ts *testscript.TestScript, ok bool, form string) {
	if !ok {
		ts.Fatalf("usage: %s", form)
	}
}

// command prepares a program as a shell would start it: in a separate process group, in the
// script's directory and environment.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := args[0]
	if !strings.Contains(path, "/") {
		for dir := range strings.SplitSeq(ts.Getenv("PATH"), ":") {
			if _, err := os.Stat(filepath.Join(dir, path)); err == nil {
				path = filepath.Join(dir, path)
				break
			}
		}
	}
	c := exec.Command(path, args[1:]...)
	c.Args[0] = args[0]
	c.Dir = ts.MkAbs(".")
	for _, name := range []string{
		"PATH", "HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "WORK", "TMPDIR", "HASP_STORE", "HASP_WAIT", "HASP_NO_WAIT", "HASP_NOTE", "HASP_BUSY_CODE",
		"HASP_STATUS_FD", "HASP_HELD", "HASP_TTL", "HASP_KILL_AFTER", "REDISCLI_AUTH", "PGPASSWORD", "GORACE",
	} {
		if value := ts.Getenv(name); value != "" {
			c.Env = append(c.Env, name+"="+value)
		}
	}
	return c
}

// code N CMD ARGS: runs CMD in the foreground and demands exit code N.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) >= 2, "code N CMD [ARGS]")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	var out, errOut bytes.Buffer
	c := command(ts, args[1:])
	c.Stdout, c.Stderr = &out, &errOut
	err = c.Run()
	_, _ = ts.Stdout().Write(out.Bytes())
	_, _ = ts.Stderr().Write(errOut.Bytes())
	if got := exitCodeOf(c, err); got != want {
		ts.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", got, want, out.String(), errOut.String())
	}
}

func exitCodeOf(c *exec.Cmd, err error) int {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return -1
	}
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 1000 + int(ws.Signal()) // killed itself, which hasp never shows as a code
	}
	return c.ProcessState.ExitCode()
}

// start NAME CMD ARGS: runs CMD in the background, with NAME.out and NAME.err, and an open
// standard input.
func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) >= 2, "start NAME CMD [ARGS]")
	c := command(ts, args[1:])
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := c.StdinPipe()
	ts.Check(err)
	c.Stdout, c.Stderr = printed(ts, args[0]+".out"), printed(ts, args[0]+".err")
	background(ts, args[0], c, input)
}

func printed(ts *testscript.TestScript, name string) *os.File {
	f, err := os.Create(ts.MkAbs(name))
	ts.Check(err)
	return f
}

func background(ts *testscript.TestScript, name string, c *exec.Cmd, input io.WriteCloser) {
	ts.Check(c.Start())
	p := &process{cmd: c, input: input, done: make(chan struct{})}
	processes(ts)[name] = p
	go func() {
		_ = c.Wait()
		p.ended = time.Now()
		close(p.done)
	}()
	ts.Defer(func() {
		_ = c.Process.Kill()
		<-p.done
	})
}

// sig NAME SIGNAL: to the process alone.
func cmdSig(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) == 2 && unix.SignalNum("SIG"+args[1]) != 0, "sig NAME SIGNAL")
	ts.Check(find(ts, args[0]).cmd.Process.Signal(unix.SignalNum("SIG" + args[1])))
}

// type NAME TEXT [REGEXP]: writes to its input; \n, \x03 and the like as in Go. With REGEXP it
// writes again every two seconds until NAME.out matches: a shell that is signalled just before it
// reads runs the trap after the read.
func cmdType(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && (len(args) == 2 || len(args) == 3), "type NAME TEXT [REGEXP]")
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	var typed time.Time
	write := func() {
		_, err := io.WriteString(find(ts, args[0]).input, text)
		ts.Check(err)
		typed = time.Now()
	}
	write()
	if len(args) == 2 {
		return
	}
	re, err := regexp.Compile("(?m)" + args[2])
	ts.Check(err)
	eventually(ts, func() error {
		out := args[0] + ".out"
		if b, _ := os.ReadFile(ts.MkAbs(out)); !re.Match(b) {
			if time.Since(typed) > 2*time.Second {
				write()
			}
			return fmt.Errorf("%s does not match %s:\n%s", out, args[2], b)
		}
		return nil
	})
}

// close NAME: ends its input.
func cmdClose(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) == 1, "close NAME")
	ts.Check(find(ts, args[0]).input.Close())
}

// ends NAME CODE: waits for its end and demands the exit code; 1000+n for a process that was itself
// killed by signal n.
func cmdEnds(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) == 2, "ends NAME CODE")
	p := find(ts, args[0])
	want, err := strconv.Atoi(args[1])
	ts.Check(err)
	select {
	case <-p.done:
	case <-time.After(patience):
		ts.Fatalf("%s still runs after %s\n%s", args[0], patience, outputs(ts, args[0]))
	}
	if got := exitCodeOf(p.cmd, nil); got != want {
		ts.Fatalf("%s: exit code %d, want %d\n%s", args[0], got, want, outputs(ts, args[0]))
	}
}

func outputs(ts *testscript.TestScript, name string) string {
	var all string
	for _, suffix := range []string{".out", ".err"} {
		b, _ := os.ReadFile(ts.MkAbs(name + suffix))
		all += fmt.Sprintf("%s: %s\n", name+suffix, b)
	}
	return all
}

// until FILE REGEXP: waits until the file matches. ! until: it must not match now.
func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, len(args) == 2, "[!] until FILE REGEXP")
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	if neg {
		if b, _ := os.ReadFile(ts.MkAbs(args[0])); re.Match(b) {
			ts.Fatalf("%s matches %s:\n%s", args[0], args[1], b)
		}
		return
	}
	eventually(ts, func() error {
		if b, _ := os.ReadFile(ts.MkAbs(args[0])); !re.Match(b) {
			return fmt.Errorf("%s does not match %s:\n%s", args[0], args[1], b)
		}
		return nil
	})
}

// gone FILE: waits until the process whose number is in the file is dead. ! gone: it must
// live.
func cmdGone(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, len(args) == 1, "[!] gone PIDFILE")
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[0])))
	ts.Check(err)
	if neg {
		if !alive(pid) {
			ts.Fatalf("process %d is gone", pid)
		}
		return
	}
	eventually(ts, func() error {
		if alive(pid) {
			return fmt.Errorf("process %d lives", pid)
		}
		return nil
	})
}

// alive is false for a zombie: it runs nothing any more.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// prompt A B: process B has waited for the end of A, and was told of it.
func cmdPrompt(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) == 2, "prompt A B")
	a, b := find(ts, args[0]), find(ts, args[1])
	<-a.done
	<-b.done
	if d := b.ended.Sub(a.ended); d > prompt {
		ts.Fatalf("%s ended %s after %s: it was not told, and looked by itself", args[1], d, args[0])
	}
}

func eventually(ts *testscript.TestScript, check func() error) {
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("after %s: %v", patience, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
