//go:build unix && !linux

package group

import (
	"os/signal"
	"syscall"
)

// holdingBackTTOU ignores the signal from here on. A thread's mask cannot be set without C
// here; the price is that commands that elect starts in later terms ignore it, too.
func holdingBackTTOU(do func()) {
	signal.Ignore(syscall.SIGTTOU)
	do()
}

// DespiteTOSTOP only runs do: for a few words it is not worth the price above.
func DespiteTOSTOP(do func()) { do() }
