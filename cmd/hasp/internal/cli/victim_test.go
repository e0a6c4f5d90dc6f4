//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp/internal/signals"
	"golang.org/x/sys/unix"
)

// victim NAME [SIGNAL=ignore|CODE|note]... is a command to be signalled: it writes its
// number to NAME.pid when it is ready, notes the signals it was told about in NAME.got, and
// exits with CODE after one that has a code. Otherwise it ends with 3 when NAME.go exists.
//
// A shell with traps would not do: dash loses a signal that comes while it forks.
func victim() {
	name := os.Args[1]
	actions := map[os.Signal]string{}
	got := make(chan os.Signal, 16)
	for _, arg := range os.Args[2:] {
		sig, action, _ := strings.Cut(arg, "=")
		n := unix.SignalNum("SIG" + sig)
		if n == 0 {
			fmt.Fprintln(os.Stderr, "victim: no such signal:", sig)
			os.Exit(99)
		}
		actions[n] = action
		if action == "ignore" {
			signal.Ignore(n)
		} else {
			signal.Notify(got, n)
		}
	}
	note(name+".pid", strconv.Itoa(os.Getpid()))
	for {
		select {
		case sig := <-got:
			note(name+".got", signals.Name(sig.(syscall.Signal)))
			if code, err := strconv.Atoi(actions[sig]); err == nil {
				os.Exit(code)
			}
		case <-time.After(10 * time.Millisecond):
			if _, err := os.Stat(name + ".go"); err == nil {
				os.Exit(3)
			}
		}
	}
}

func note(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(line + "\n")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "victim:", err)
		os.Exit(99)
	}
}
