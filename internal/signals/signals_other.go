//go:build !unix

package signals

import (
	"os"
	"syscall"
)

// Only the console's signals exist here, and there is no command to forward others to.
var (
	End       = []os.Signal{os.Interrupt, syscall.SIGTERM}
	forwarded = End
)

// Stop does not exist here: no signal has this number.
const Stop = syscall.Signal(-1)

func StopSelf() bool { return false }

func Name(s syscall.Signal) string { return s.String() }

func ByName(string) syscall.Signal { return 0 }
