//go:build unix

package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
)

// program is some agents that do what a seed says, each one thing after the other.
type program struct {
	history
	dir        string
	sockets    string // TMPDIR of all
	store      string
	hasp       string // its path
	before     string // it in PATH
	agents     int
	steps      int
	bound      time.Duration // for what must happen
	expires    bool          // the store's locks do
	firstFault string        // ends it
}

// actor tells one agent after the other what to do: after its death there is another.
type actor struct {
	*program
	rng             *rand.Rand
	number          int
	lives, commands int
	name            string
	cmd             *exec.Cmd
	words           io.WriteCloser
	out             *bufio.Reader
	has             map[string]*claim
	dies            time.Duration // after the begin of the next call; 0: no
	dead            bool
	untold          bool // that a holder was killed: the call that would have been told, or was, was killed
}

// reply is the answer of a call. Its code is -1 if it was killed, and -2 if its agent was.
type reply struct {
	code   int
	states []hold.State
	sent   time.Time
}

func (p *program) run(seed uint64) {
	p.began = time.Now()
	var all sync.WaitGroup
	for i := range p.agents {
		a := &actor{program: p, number: i, rng: rand.New(rand.NewPCG(seed, uint64(i)))}
		a.start()
		all.Go(func() {
			for range p.steps {
				if a.step(); p.stops() {
					break
				}
			}
			if a.rng.IntN(2) == 0 {
				a.release(p.bound)
			}
			a.end()
		})
	}
	all.Wait()
	p.exclusion()
	p.left()
}

// stops says that a control has found its fault.
func (p *program) stops() bool {
	if p.firstFault == "exclusion" {
		p.exclusion()
	}
	return p.firstFault != "" && p.found(p.firstFault)
}

func (p *program) environ() []string {
	return []string{
		"HASP_STORE=" + p.store, "TMPDIR=" + p.sockets, "XDG_RUNTIME_DIR=", "XDG_CONFIG_HOME=" + p.dir, "WORK=" + p.dir,
		"PATH=" + p.before + filepath.Dir(p.hasp) + ":" + os.Getenv("PATH"), "GORACE=atexit_sleep_ms=0",
	}
}

func (a *actor) start() {
	a.lives++
	a.name, a.has, a.dead, a.dies, a.untold = fmt.Sprintf("%c%d", 'a'+a.number, a.lives), map[string]*claim{}, false, 0, false
	a.cmd = newAgent(a.dir, a.name)
	a.cmd.Env = append(a.cmd.Env, a.environ()...)
	out, err := a.cmd.StdoutPipe()
	if err == nil {
		a.words, err = a.cmd.StdinPipe()
	}
	if err == nil {
		err = a.cmd.Start()
	}
	if err != nil {
		panic(err) // no test fails by it
	}
	a.out = bufio.NewReader(out)
}

func (a *actor) end() {
	a.believed(a.requests(), time.Now())
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
	if said := fmt.Sprint(a.cmd.Stderr); said != "" {
		a.fault("agent", "%s says %s", a.name, said)
	}
}

// call has the agent execute hasp, and judges the exit code.
func (a *actor) call(limit time.Duration, codes []int, args string) (r reply) {
	files := filepath.Join(a.dir, a.name)
	r.sent, r.code = time.Now(), -2
	a.say("%s: hasp %s (%s)", a.name, args, limit)
	if a.dies > 0 {
		a.believed(a.requests(), r.sent)
		process := a.cmd.Process
		dead := time.AfterFunc(a.dies, func() { _ = process.Kill() })
		defer func() {
			if a.dies = 0; !dead.Stop() {
				r.code, r.states, a.dead = -2, nil, true
				clear(a.has)
			}
		}()
	}
	_, _ = fmt.Fprintf(a.words, "%s hasp %s >%s.out 2>%[3]s.err\n", limit, args, files)
	if text, err := a.out.ReadString('\n'); err == nil {
		r.code, _ = strconv.Atoi(strings.TrimSpace(text))
	} else {
		a.dead = true
	}
	out, _ := os.ReadFile(files + ".out")
	errOut, _ := os.ReadFile(files + ".err")
	said := string(out) + string(errOut)
	a.count(fmt.Sprint(strings.Fields(args)[0], " ", r.code))
	a.say("%s: %d after %s %s", a.name, r.code, time.Since(r.sent).Round(time.Millisecond), said)
	switch {
	case strings.Contains(said, "panic: ") || strings.Contains(said, "DATA RACE"):
		a.fault("panic", "%s: hasp %s: %s", a.name, args, said)
	case r.code == -1 && limit == a.bound:
		a.fault("hang", "%s: hasp %s", a.name, args)
	case r.code >= 0 && !slices.Contains(codes, r.code):
		a.fault("code", "%s: hasp %s: %d, and may be %d: %s", a.name, args, r.code, codes, said)
	}
	if r.code >= 0 {
		for in := json.NewDecoder(strings.NewReader(string(out))); ; {
			var s hold.State
			if in.Decode(&s) != nil {
				return r
			}
			if s.PID != a.cmd.Process.Pid {
				a.fault("mine", "%s, process %d: hasp %s: %s", a.name, a.cmd.Process.Pid, args, said)
			}
			r.states = append(r.states, s)
		}
	}
	return r
}

// holders are the background holders of the agent, or those of a note, as far as the system tells.
func (p *program) holders(of ...string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		text, _ := os.ReadFile(path)
		args := strings.Split(string(text), "\x00")
		if len(args) > 1 && args[1] == "__keep" && !slices.ContainsFunc(of, func(s string) bool {
			return !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, s) })
		}) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (a *actor) its() string { return fmt.Sprint(a.sockets, "/hasp-hold-", a.cmd.Process.Pid, ".") }

// stop stops one of the agent's holders for a time. What it returns waits for the end of that.
func (a *actor) stop(d time.Duration) (going func()) {
	pids := a.holders(a.its())
	if len(pids) == 0 {
		return func() {}
	}
	a.say("%s: holder %d stops for %s", a.name, pids[0], d)
	_ = syscall.Kill(pids[0], syscall.SIGSTOP)
	gone := make(chan struct{})
	time.AfterFunc(d, func() {
		_ = syscall.Kill(pids[0], syscall.SIGCONT)
		close(gone)
	})
	return func() { <-gone }
}

// killHolder kills the holder of a request. One at a time, or none could say which was told.
func (a *actor) killHolder() {
	for _, r := range a.requests() {
		pids := a.holders(a.its(), r.note())
		if a.untold || len(a.in("killed", "unknown")) > 0 || len(pids) != 1 {
			continue
		}
		a.believed([]*claim{r}, time.Now())
		a.say("%s: holder %d of %q is killed", a.name, pids[0], r.args)
		_ = syscall.Kill(pids[0], syscall.SIGKILL)
		for slices.Contains(a.holders(a.its(), r.note()), pids[0]) {
			time.Sleep(time.Millisecond)
		}
		r.state = "killed"
	}
}
