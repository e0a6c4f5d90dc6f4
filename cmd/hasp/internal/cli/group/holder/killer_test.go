//go:build unix

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// buildHolder builds the holder without the race detector, whose processes take ten times as long
// to start: the test must kill in the first milliseconds.
func buildHolder(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holder")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// crew are holders and all that their groups are made of.
type crew struct {
	holders []*exec.Cmd
	log     *bufio.Scanner
	alive   *os.File // ends when the last process of all groups, and the last holder, is dead
}

// startCrew starts a holder for each script.
func startCrew(t *testing.T, holder string, scripts ...string) *crew {
	t.Helper()
	alive, members, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	logged, log, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer members.Close()
	defer log.Close()
	t.Cleanup(func() { alive.Close(); logged.Close() })
	c := &crew{nil, bufio.NewScanner(logged), alive}
	for i, script := range scripts {
		h := exec.Command(holder, strconv.Itoa(i), script)
		h.Stdout, h.ExtraFiles = members, []*os.File{log}
		if err := h.Start(); err != nil {
			t.Fatal(err)
		}
		c.holders = append(c.holders, h)
	}
	return c
}

func (c *crew) kill() (err error) {
	for _, h := range c.holders {
		err = errors.Join(err, h.Process.Kill())
	}
	return err
}

func (c *crew) wait() (err error) {
	for _, h := range c.holders {
		err = errors.Join(err, h.Wait())
	}
	return err
}

// lives waits until no process is left, and returns an error if one keeps running.
func (c *crew) lives() error {
	_ = c.alive.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, c.alive); err != nil {
		return fmt.Errorf("of %d: %w: a process keeps running", c.holders[0].Process.Pid, err)
	}
	return nil
}

// told reads what the holder says until a line is the one.
func (c *crew) told(line string) bool {
	for c.log.Scan() {
		if c.log.Text() == line {
			return true
		}
	}
	return false
}

// guardians are the holders', by their numbers.
func (c *crew) guardians() []int {
	var found []int
	parents := map[string]bool{}
	for _, h := range c.holders {
		parents[strconv.Itoa(h.Process.Pid)] = true
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) < 2 || f[0] == "Z" || !parents[f[1]] {
			continue
		}
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if id, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil && strings.Contains(string(args), "__guard-group") {
			found = append(found, id)
		}
	}
	return found
}

// ready waits for the holder's guardian to be one: until it ignores signals, it can be killed by
// them, and is replaced.
func (c *crew) ready(t *testing.T) int {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if all := c.guardians(); len(all) == 1 && ignoresTERM(all[0]) {
			return all[0]
		}
	}
	_ = c.kill()
	t.Fatalf("guardians: %v", c.guardians())
	return 0
}

func ignoresTERM(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
	set, _ := strconv.ParseUint(strings.SplitN(rest, "\n", 2)[0], 16, 64)
	return set&(1<<(syscall.SIGTERM-1)) != 0
}

// seed is HASP_SEED, or a new one each time.
func seed(t *testing.T) uint64 {
	s, err := strconv.ParseUint(os.Getenv("HASP_SEED"), 10, 64)
	if err != nil {
		s = rand.Uint64()
	}
	t.Logf("HASP_SEED=%d repeats this", s)
	return s
}

// rounds runs n of them, a few at a time.
func rounds(t *testing.T, n int, round func(r *rand.Rand) error) {
	s := seed(t)
	var all sync.WaitGroup
	slots := make(chan struct{}, 4)
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			if err := round(rand.New(rand.NewPCG(s, uint64(i)))); err != nil {
				t.Errorf("round %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

// family is a script that starts children as soon as possible, one of them in the background of a
// background.
const family = "sleep 1000 & (sleep 1000 & sleep 1000) & sleep 1000"

// The holder is killed while its groups start, or just after. A guardian that was started after its
// command, or learned its number later, left children running:
//
//	holder: fork command
//	                      command: fork child
//	killed
//	                      (parent-death signal)
//	                                             child works on, without a lock
func TestNobodyOutlivesAKilledHolder(t *testing.T) {
	holder := buildHolder(t)
	const groups = 10
	rounds(t, 60, func(r *rand.Rand) error {
		scripts := make([]string, groups)
		for i := range scripts {
			scripts[i] = family
		}
		c := startCrew(t, holder, scripts...)
		defer c.wait() //nolint:errcheck // killed
		time.Sleep(time.Duration(r.IntN(60_000)) * time.Microsecond)
		if err := c.kill(); err != nil {
			return err
		}
		return c.lives()
	})
}

// The command itself kills the holder, as its first action: there is no earlier moment. The control
// is the same script without the kill.
func TestCommandThatKillsItsParentTakesNobodyAlong(t *testing.T) {
	holder := buildHolder(t)
	rounds(t, 60, func(*rand.Rand) error {
		c := startCrew(t, holder, "sleep 1000 & kill -9 $PPID; sleep 1000")
		defer c.wait() //nolint:errcheck // killed
		return c.lives()
	})
	c := startCrew(t, holder, "sleep 0.05 & kill -0 $PPID; exit 4")
	if !c.told("0 exited 4") || !c.told("0 gone") || c.wait() != nil || c.lives() != nil {
		t.Error("the control does not behave")
	}
}

// Guardians are killed at any time, also while their groups end by themselves. Each group's end is
// reported correctly, no unrelated process is killed, and a group whose guardian was replaced is as
// safe as before.
func TestGuardiansAreKilled(t *testing.T) {
	holder := buildHolder(t)
	const groups = 10
	innocent := exec.Command("sleep", "1000")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	rounds(t, 40, func(r *rand.Rand) error {
		scripts := make([]string, groups)
		for i := range scripts {
			scripts[i] = fmt.Sprintf("sleep 0.0%02d & sleep 0.0%02d; exit %d", r.IntN(99), r.IntN(99), i)
		}
		c := startCrew(t, holder, scripts...)
		over := make(chan map[string]int, 1)
		go func() {
			lines := map[string]int{}
			for c.log.Scan() {
				lines[c.log.Text()]++
			}
			over <- lines
		}()
		for range 3 {
			time.Sleep(time.Duration(r.IntN(30_000)) * time.Microsecond)
			for _, pid := range c.guardians() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if err := c.wait(); err != nil {
			return err
		}
		lines := <-over
		for i := range groups {
			if lines[fmt.Sprint(i, " exited ", i)] != 1 || lines[fmt.Sprint(i, " gone")] != 1 {
				return fmt.Errorf("group %d: %v", i, lines)
			}
		}
		return c.lives()
	})
	if err := innocent.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := innocent.Wait(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("an unrelated process: %v", err)
	}
}

// The service manager's TERM, a stop, a kill of the guardian: in no case may a process outlive a
// killed holder.
func TestAGuardianIsThereWhateverBecomesOfIt(t *testing.T) {
	holder := buildHolder(t)
	for name, harm := range map[string]func(c *crew, guardian int){
		"nothing": func(*crew, int) {}, // the control
		// The manager's TERM goes to every process of the service, and may come at any time.
		"asked to end": func(_ *crew, guardian int) {
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1} {
				_ = syscall.Kill(guardian, sig)
			}
		},
		"stopped": func(_ *crew, guardian int) { _ = syscall.Kill(guardian, syscall.SIGSTOP) },
		"killed": func(c *crew, guardian int) {
			for range 3 {
				_ = syscall.Kill(guardian, syscall.SIGKILL)
				if !c.told("0 guarded") {
					t.Error("it was not replaced")
				}
				guardian = c.ready(t)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCrew(t, holder, "echo; "+family)
			defer c.wait() //nolint:errcheck // killed
			if _, err := c.alive.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			harm(c, c.ready(t))
			if err := c.kill(); err != nil {
				t.Fatal(err)
			}
			if err := c.lives(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A guardian has nothing open but the pipe that it reads: no lock, connection or output of a holder
// that is dead.
func TestAGuardianKeepsNothingOpen(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	c := startCrew(t, buildHolder(t), "echo; exec sleep 1000")
	defer c.wait() //nolint:errcheck // killed
	defer c.kill()
	if _, err := c.alive.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	guardian := c.ready(t)
	dir := fmt.Sprintf("/proc/%d/fd", guardian)
	open, err := os.ReadDir(dir)
	if err != nil || len(open) == 0 {
		t.Fatalf("%v open, %v", open, err)
	}
	for _, file := range open {
		to, err := os.Readlink(filepath.Join(dir, file.Name()))
		if own := strings.HasPrefix(to, "anon_inode:"); err != nil || !own && (file.Name() != "0" || !strings.HasPrefix(to, "pipe:")) {
			t.Errorf("%s is open as %s, %v", to, file.Name(), err)
		}
	}
}

// The command has the limit of open files that hasp was started with: Go raises its own.
func TestLimitsAreInherited(t *testing.T) {
	out, err := exec.Command("sh", "-c", `ulimit -Sn 77 && exec "$@" 3>/dev/null`, "sh", buildHolder(t), "0", "ulimit -Sn").Output()
	if err != nil || string(out) != "77\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// The command ignores HUP, INT and the signals of job control if the parent process ignored them,
// exactly as without hasp, and takes all others as without hasp where nothing is ignored.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	holder := buildHolder(t)
	const look = "grep -E 'SigIgn|SigBlk' /proc/self/status"
	for _, trap := range []string{
		"", // the control
		"trap '' HUP;", "trap '' INT TSTP;", "trap '' HUP INT TSTP TTIN TTOU;",
	} {
		plain, err := exec.Command("sh", "-c", trap+" exec "+look).Output()
		if err != nil {
			t.Fatal(err)
		}
		under, err := exec.Command("sh", "-c", trap+` exec "$@" 3>/dev/null`, "sh", holder, "0", "exec "+look).Output()
		if err != nil {
			t.Fatal(err)
		}
		if string(under) != string(plain) {
			t.Errorf("%s without us %sunder us %s", trap, plain, under)
		}
	}
}
