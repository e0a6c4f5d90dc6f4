//go:build unix && !linux

package group

import (
	"os/signal"
	"syscall"
)

// holdingBackTTOU ignores the signal from here on. Here a thread's mask cannot be set without C; so
// the commands that elect starts in later terms ignore it, too.
func holdingBackTTOU(do func()) {
	signal.Ignore(syscall.SIGTTOU)
	do()
}

// DespiteTOSTOP only runs do: a few lines of output do not justify the price above.
func DespiteTOSTOP(do func()) { do() }
