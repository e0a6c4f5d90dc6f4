//go:build unix

package cli

import (
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hasplock/hasp/internal/exit"
	"golang.org/x/sys/unix"
)

// runWith runs hasp as a process with these descriptors and no others, and returns its exit code.
func runWith(t *testing.T, files []uintptr, args ...string) int {
	t.Helper()
	path, err := exec.LookPath("hasp") // this program, put there by TestMain
	if err != nil {
		t.Fatal(err)
	}
	plain := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "HASP_") }) // those of the tests are unknown to it
	pid, err := syscall.ForkExec(path, append([]string{"hasp"}, args...), &syscall.ProcAttr{
		// The race detector sleeps for a second at each process's end.
		Env: append(plain, "HASP_STORE=file://"+t.TempDir(), "GORACE=atexit_sleep_ms=0"), Files: files,
	})
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	return status.ExitStatus()
}

// A descriptor of the Go runtime does not count as inherited: its epoll descriptor is open before
// hasp looks, if standard input is a non-blocking pipe, and by its flags it can be written to. An
// inherited descriptor is accepted, even at the number that the epoll descriptor would have.
func TestStatusIsNotTheRuntimes(t *testing.T) {
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		t.Fatal(err)
	}
	for _, fd := range pipe {
		defer unix.Close(fd)
		unix.CloseOnExec(fd)
		if err := unix.SetNonblock(fd, true); err != nil {
			t.Fatal(err)
		}
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	standard := []uintptr{uintptr(pipe[0]), null.Fd(), null.Fd()}
	const most = 12
	keepDescriptors()
	for fd := len(standard); fd < most; fd++ {
		if code := runWith(t, standard, "run", "--status-fd", strconv.Itoa(fd), "a", "--", "true"); code != exit.CodeUsage {
			t.Errorf("--status-fd %d, which was not opened: exit code %d", fd, code)
		}
	}
	given := standard
	for len(given) < most {
		given = append(given, null.Fd())
	}
	for fd := len(standard); fd < most; fd++ {
		if code := runWith(t, given, "run", "--status-fd", strconv.Itoa(fd), "a", "--", "true"); code != exit.CodeOK {
			t.Errorf("--status-fd %d, which was given: exit code %d", fd, code)
		}
	}
}
