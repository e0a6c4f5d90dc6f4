//go:build unix

package cli

import (
	"os"
	"strings"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"golang.org/x/sys/unix"
)

// stopSignal is Ctrl-Z. It is caught so that a command never keeps running while hasp is stopped
// and cannot watch its lock.
const stopSignal = syscall.SIGTSTP

// stopSelf stops hasp as that signal would have.
func stopSelf() { _ = group.StopSelf() }

// endSignals ask hasp to end; hasp forwards forwardSignals to the command. WINCH is among them
// since the terminal tells only its foreground group of a new size.
var (
	endSignals     = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
	forwardSignals = append(endSignals[:len(endSignals):len(endSignals)], syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, stopSignal)
)

func signalName(s syscall.Signal) string {
	return strings.TrimPrefix(unix.SignalName(s), "SIG")
}

// signalByName returns 0 for an unknown name.
func signalByName(name string) syscall.Signal {
	return unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(name), "SIG"))
}
