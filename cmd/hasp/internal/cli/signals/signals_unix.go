//go:build unix

package signals

import (
	"os"
	"strings"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"golang.org/x/sys/unix"
)

// Stop is Ctrl-Z. It is caught so that a command never keeps running while hasp is stopped and
// cannot watch its lock.
const Stop = syscall.SIGTSTP

// stopSelf stops hasp as that signal would have.
func stopSelf() { _ = group.StopSelf() }

// End are those that ask hasp to end; hasp forwards these and others to the command. WINCH is among
// them since the terminal tells only its foreground group of a new size.
var (
	End       = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
	forwarded = append(End[:len(End):len(End)], syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, Stop)
)

// Name is that of a signal without SIG.
func Name(s syscall.Signal) string {
	return strings.TrimPrefix(unix.SignalName(s), "SIG")
}

// ByName returns 0 for an unknown name.
func ByName(name string) syscall.Signal {
	return unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
}
