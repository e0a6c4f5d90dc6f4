//go:build unix

package signals

import (
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Stop is Ctrl-Z. It is caught so that a command never keeps running while hasp is stopped and
// cannot watch its lock.
const Stop = syscall.SIGTSTP

// StopSelf stops this process and the rest of its job, as Ctrl-Z would, and returns when they are
// continued. Without job control (an orphaned process group) the kernel ignores the signal, and
// StopSelf returns false soon. It may also return false in other cases: see Orphaned of package
// group.
//
// It sends TTIN, since TSTP is caught (for the command) and Go does not restore the default of a
// signal that was caught. It does not send STOP, which would stop this process where no shell
// continues it.
func StopSelf() (continued bool) {
	conts := make(chan os.Signal, 1)
	signal.Notify(conts, syscall.SIGCONT)
	defer signal.Stop(conts)
	_ = syscall.Kill(0, syscall.SIGTTIN)
	// Another thread may be the one to take the signal, a moment after kill has returned.
	select {
	case <-conts:
		return true
	case <-time.After(100 * time.Millisecond):
		return false
	}
}

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
