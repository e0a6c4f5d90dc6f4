package serverprocess

import (
	"bytes"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// Supported: this package does what it says. Elsewhere it only builds.
const Supported = true

// Terminate and Interrupt are the clean ends that servers know.
const (
	Terminate = syscall.SIGTERM
	Interrupt = syscall.SIGINT
)

// Account is a user to run a server as that refuses to run as root.
type Account struct{ uid, gid int }

// AccountFor returns the account that a Debian package made for its server, or nil if this process
// is not root and so cannot change its user.
func AccountFor(name string) (*Account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err1 != nil || err2 != nil {
		return nil, fmt.Errorf("user %s has the ids %q and %q", name, u.Uid, u.Gid)
	}
	return &Account{uid, gid}, nil
}

// Attributes puts a server into a separate process group, so that a Ctrl-C in the terminal reaches
// the test and not, at the same moment, its servers.
func Attributes(a *Account) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return attr
}

// freeze stops a process, then its children, and so on, and returns the descendants.
// Parents first: one that stands still has no more children while we look for them.
func freeze(p *os.Process) []int {
	if p.Signal(syscall.SIGSTOP) != nil {
		return nil // gone already
	}
	awaitFrozen(p.Pid)
	all := children(p.Pid)
	for i := 0; i < len(all); i++ { // all grows meanwhile
		_ = syscall.Kill(all[i], syscall.SIGSTOP) // an error: it has just ended
		awaitFrozen(all[i])
		all = append(all, children(all[i])...)
	}
	return all
}

// thaw lets a process and its descendants go on, children first, so that a parent finds
// them as it left them.
func thaw(p *os.Process) {
	all := []int{p.Pid}
	for i := 0; i < len(all); i++ {
		all = append(all, children(all[i])...)
	}
	for i := len(all) - 1; i > 0; i-- {
		_ = syscall.Kill(all[i], syscall.SIGCONT)
	}
	_ = p.Signal(syscall.SIGCONT)
}

// killAll kills processes that are not ours to wait for and returns when they are gone.
func killAll(pids []int) error {
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for deadline := time.Now().Add(stopLimit); ; time.Sleep(PollEvery) {
		left := 0
		for _, pid := range pids {
			if !Gone(pid) {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d of the processes %v are still there", left, pids)
		}
	}
}

// Gone reports whether a process has ended. A zombie holds nothing any more; init takes it away when it likes.
func Gone(pid int) bool {
	_, state := parentAndState(pid)
	return state == 0 || state == 'Z'
}

// awaitFrozen returns when a stop signal has taken effect: kill(2) returns before, and
// what the process did in between, we would not know of. A process that is deep in the
// kernel stops later, but does nothing there that we care about.
func awaitFrozen(pid int) {
	for range 200 {
		switch _, state := parentAndState(pid); state {
		case 'T', 't', 'Z', 0:
			return
		}
		time.Sleep(PollEvery)
	}
}

func children(pid int) []int {
	all, _ := filepath.Glob("/proc/[0-9]*") // fails on a bad pattern only
	var out []int
	for _, dir := range all {
		child, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if parent, _ := parentAndState(child); parent == pid {
			out = append(out, child)
		}
	}
	return out
}

// parentAndState reads what the kernel says of a process; state is 0 if there is none.
func parentAndState(pid int) (parent int, state byte) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The name in parentheses may hold anything, a ')' too; what follows it may not.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 2 {
		return 0, 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return parent, fields[0][0]
}
