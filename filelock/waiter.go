//go:build linux || darwin || freebsd

package filelock

import (
	"sync/atomic"

	"github.com/hasplock/hasp/internal/bell"
)

// waiter is what the post wakes.
type waiter struct {
	bell    bell.Bell
	left    atomic.Bool // does not wait any more, and will not again
	watches watches     // whose lives; guarded by post.mu
}
