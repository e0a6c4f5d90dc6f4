package group

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group/spawn"
	"golang.org/x/sys/unix"
)

// SeesDetached reports whether the processes that leave a group are seen here.
func SeesDetached() bool {
	files, _ := filepath.Glob(childFiles)
	return len(files) > 0 && unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil
}

// childFiles list the children of this process, by thread. Not every kernel is built with them.
const childFiles = "/proc/self/task/*/children"

func childNumbers() (all []int) {
	files, _ := filepath.Glob(childFiles)
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for number := range strings.FieldsSeq(string(text)) {
			pid, _ := strconv.Atoi(number)
			all = append(all, pid)
		}
	}
	return all
}

// detachedLocked are the children at work that this process has not started: they have come as
// orphans. When a group is empty, what has left it is among them, or below one of them and comes
// here when that one ends. With mu held none is reaped: no number becomes another process's, and
// the kernel's lists, from which nothing is taken meanwhile, are complete.
//
// Guardians and the background holder of another hasp do no work, and end by themselves. While they
// do their command line is empty, and the name that they were executed by (see Executable) is left.
func (g *Group) detachedLocked() (all []process) {
	for _, pid := range childNumbers() {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		first, _, _ := strings.Cut(string(line[bytes.IndexByte(line, 0)+1:]), "\x00")
		p, err := readProcess(pid)
		hasps := slices.Contains([]string{spawn.Guard, spawn.Launch, "__keep"}, first) || len(line) == 0 && p.command == "exe"
		if !g.others[pid] && err == nil && !p.zombie && !hasps {
			all = append(all, p)
		}
	}
	return all
}

// signalDetached reports ESRCH if none is left that is waited for.
func (g *Group) signalDetached(sig syscall.Signal) error {
	err := error(syscall.ESRCH)
	if g.detached {
		for _, p := range g.detachedLocked() {
			if e := syscall.Kill(p.id, sig); err != nil {
				err = e
			}
		}
	}
	return err
}
