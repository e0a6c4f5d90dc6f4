//go:build !linux

package history

import "time"

// now is the wall clock: the only one that several processes share here without cgo. If
// it is stepped during a test, the record is worthless.
func now() Time { return Time(time.Now().UnixNano()) }
