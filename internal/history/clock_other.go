//go:build !linux

package history

import "time"

// Now is the wall clock: the only one that several processes share here without cgo. If
// it is stepped during a test, the record is worthless.
func Now() Time { return Time(time.Now().UnixNano()) }
