//go:build unix

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// condition is for scripts that need the rights of root.
func condition(name string) (bool, error) {
	if name == "root" {
		return os.Geteuid() == 0, nil
	}
	if name == "init" { // process 1 is that of the machine, and not of a container
		ns, err := os.Readlink("/proc/self/ns/pid")
		return err != nil || ns == "pid:[4026531836]", nil
	}
	return false, fmt.Errorf("no such condition: %s", name)
}

// guardian NAME FILE: writes the number of hasp NAME's guardian to FILE. ! guardian NAME: it
// has none.
func cmdGuardian(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, len(args) == 2 && !neg || len(args) == 1 && neg, "guardian NAME FILE, ! guardian NAME")
	found := childOf(find(ts, args[0]).cmd.Process.Pid, "__guard-group")
	if neg {
		if found != 0 {
			ts.Fatalf("%s has guardian %d", args[0], found)
		}
		return
	}
	eventually(ts, func() error { // until then it can be killed, and is replaced
		if found = childOf(find(ts, args[0]).cmd.Process.Pid, "__guard-group"); found == 0 {
			return fmt.Errorf("%s has no guardian\n%s", args[0], outputs(ts, args[0]))
		}
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", found))
		_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
		if set, _ := strconv.ParseUint(strings.SplitN(rest, "\n", 2)[0], 16, 64); set&(1<<(syscall.SIGTERM-1)) == 0 {
			return fmt.Errorf("the guardian does not ignore TERM:\n%s", status)
		}
		return nil
	})
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(strconv.Itoa(found)+"\n"), 0o644))
}

// childOf is the child of a process that has an argument, or 0.
func childOf(parent int, arg string) int {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		dir := filepath.Dir(path)
		text, _ := os.ReadFile(path)
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) < 2 || f[0] == "Z" || f[1] != strconv.Itoa(parent) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if id, err := strconv.Atoi(filepath.Base(dir)); err == nil && strings.Contains(strings.ReplaceAll(string(line), "\x00", " "), " "+arg+" ") {
			return id
		}
	}
	return 0
}

// neglect NAME [wait]: starts a child in its group, leaves the group itself, and does not
// wait for the child, whose number is in NAME.pid, unless told to.
func neglect() {
	name := os.Args[1]
	child, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "echo $$ >" + name + ".pid"}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err == nil {
		_, err = syscall.Setsid()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "neglect:", err)
		os.Exit(99)
	}
	if len(os.Args) > 2 {
		_, _ = syscall.Wait4(child, nil, 0, nil)
	}
	note(name+".away", strconv.Itoa(os.Getpid()))
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(name + ".go"); err == nil {
			return
		}
	}
}

// headless NAME: its first thread ends and another one works on until NAME.go exists.
func headless() {
	name := os.Args[1]
	go func() {
		for strings.Split(stat(os.Getpid()), " ")[0] != "Z" {
			time.Sleep(time.Millisecond)
		}
		note(name+".pid", strconv.Itoa(os.Getpid()))
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(name + ".go"); err == nil {
				break
			}
		}
		os.Exit(0)
	}()
	endThread()
}

// stat is the line of /proc about a process, from its state on.
func stat(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(text[strings.LastIndex(string(text), ")")+2:])
}

// headless needs to be on the process's first thread, where init runs.
func init() {
	if filepath.Base(os.Args[0]) == "headless" {
		runtime.LockOSThread()
	}
}

// asroot CMD ARGS, as a set-user-ID program of root's: becomes root altogether, as sudo does,
// and executes CMD.
func asroot() {
	if err := syscall.Setuid(0); err != nil {
		fmt.Fprintln(os.Stderr, "asroot:", err)
		os.Exit(99)
	}
	fmt.Fprintln(os.Stderr, "asroot:", syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
	os.Exit(99)
}

// open CMD...: lets everybody execute the programs, which the test has made for itself alone,
// and write in the script's directory.
func cmdOpen(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) > 0, "open CMD...")
	ts.Check(os.Chmod(ts.MkAbs("."), 0o777))
	paths := []string{ts.MkAbs(".")}
	for _, name := range args {
		paths = append(paths, command(ts, []string{name}).Path)
	}
	for _, path := range paths {
		for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
			ts.Check(os.Chmod(dir, 0o755))
		}
	}
}
