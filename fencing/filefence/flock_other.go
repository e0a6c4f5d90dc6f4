//go:build !(linux || darwin || freebsd)

package filefence

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/hasplock/hasp/fencing"
)

func checkFS(string) error { return nil } // openSidecar refuses everything

// openSidecar refuses: package syscall has no flock here.
func openSidecar(context.Context, string, time.Duration) (*sidecar, error) {
	return nil, fmt.Errorf("%w: files cannot be fenced on %s", fencing.ErrInvalid, runtime.GOOS)
}
