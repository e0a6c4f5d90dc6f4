//go:build !linux

package hasp

import "time"

// bootTime has no portable source. macOS, Windows and the BSDs differ in whether their
// monotonic clock runs through sleep; docs/GUARANTEES.md says so.
func bootTime() time.Duration { return 0 }
