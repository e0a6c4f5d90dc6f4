//go:build !unix

package cli

import (
	"os"
	"syscall"
)

// Only the console's signals exist here, and there is no command to forward others to.
var (
	endSignals     = []os.Signal{os.Interrupt, syscall.SIGTERM}
	forwardSignals = endSignals
)

// stopSignal does not exist here: no signal has this number.
const stopSignal = syscall.Signal(-1)

func stopSelf() {}

func signalName(s syscall.Signal) string { return s.String() }

func signalByName(string) syscall.Signal { return 0 }
