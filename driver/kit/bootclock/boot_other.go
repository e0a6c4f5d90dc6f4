//go:build !linux

package bootclock

import "time"

// Boot has no portable source. macOS, Windows and the BSDs differ in whether their
// monotonic clock runs through sleep; docs/GUARANTEES.md says so.
func Boot() time.Duration { return 0 }
