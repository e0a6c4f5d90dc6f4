//go:build !hasp_poll

package filelock

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// A process without a free descriptor still tells the next waiter that the lock is its own: it has
// one in reserve, and has it again afterwards. Without one the waiter found out by itself, after
// half a minute and more.
//
// The test runs in a process for itself, which has no descriptors for anything else.
func TestNoDescriptorLeft(t *testing.T) {
	const inside = "HASP_FILELOCK_STARVED"
	if os.Getenv(inside) == "" {
		t.Parallel()
		c := exec.CommandContext(patient(t), os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), inside+"=1")
		if out, err := c.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	control, p := newPass(t), newPass(t)
	regains(t, newPass(t))
	without, next := control.remove(), p.remove()
	starve(t)
	n := control.holder.session.store.notifier
	n.mu.Lock()
	closeFD(n.reserve)
	n.reserve = -1
	n.mu.Unlock()
	starve(t)
	n.tell(without)
	n.mu.Lock()
	if len(n.peers) > 0 {
		t.Error("the control has found a descriptor: this tests nothing")
	}
	n.mu.Unlock()
	n = p.holder.session.store.notifier
	n.mu.Lock()
	taken := &peer{id: sessionID{1}, fd: -1} // closing it gives no descriptor, as if another part of the process were faster
	n.peers[taken.id] = taken
	n.setIdleLocked(taken)
	n.mu.Unlock()
	p.tell(next)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reserve < 0 || len(n.peers) > 0 {
		t.Errorf("after the signal the reserve is %d, and %d peers are open", n.reserve, len(n.peers))
	}
}

// regains has a process that has no reserve, and has descriptors again, signal twice: from the
// first signal on it has a reserve, and so it may keep the next peer.
func regains(t *testing.T, p *pass) {
	t.Helper()
	n := p.holder.session.store.notifier
	n.mu.Lock()
	closeFD(n.reserve)
	n.reserve = -1
	n.mu.Unlock()
	for i, peers := range []int{0, 1} {
		n.notify(wakeTarget{session: p.waits.session.id, ticket: p.waits.number})
		n.mu.Lock()
		if n.reserve < 0 || len(n.peers) != peers {
			t.Errorf("after signal %d with descriptors free the reserve is %d, and %d peers are open", i+1, n.reserve, len(n.peers))
		}
		n.mu.Unlock()
	}
}

// A store whose directory is moved while it is being opened is not opened, and keeps no descriptor.
func TestMovedWhileOpening(t *testing.T) {
	t.Parallel()
	dir := storeDir(t)
	if err := openBackend(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	root, a, err := openRoot(dir, &Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := acquireSame(patient(t), root, dir, a); !errors.Is(err, driver.ErrGone) {
		t.Errorf("opened a directory that was moved: %v", err)
	}
	closeFD(root)
	open, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, dir) {
			t.Errorf("%s is still open", to)
		}
	}
}

// starve leaves the process no descriptor.
func starve(t *testing.T) {
	t.Helper()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 256, Max: 256}); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		if _, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err != nil {
			if err != syscall.EMFILE {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("1000 descriptors and no end")
}
