//go:build !(linux || darwin || freebsd)

package filelock

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hasplock/hasp/driver"
)

// open refuses: without flock and the kernel's word on who has died there is no store.
func open(_ context.Context, path string, _ *Options) (driver.Backend, error) {
	return nil, fmt.Errorf("%w: the file store does not run on %s (asked for %s)", driver.ErrUnsupported, runtime.GOOS, path)
}
