//go:build linux || darwin || freebsd

package filelock

import "sync/atomic"

// waiter is what the post wakes.
type waiter struct {
	bell    chan struct{} // holds one ring: more would say the same
	left    atomic.Bool   // does not wait any more, and will not again
	watches watches       // whose lives; guarded by post.mu
}

func newWaiter() waiter { return waiter{bell: make(chan struct{}, 1)} }

// signal rings the bell.
func (w *waiter) signal() {
	select {
	case w.bell <- struct{}{}:
	default:
	}
}
