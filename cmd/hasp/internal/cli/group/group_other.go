//go:build !unix

package group

import "os"

// Supported says whether commands can be run in groups. Windows has no process groups that signals
// reach; its substitute, a job object, would need a separate implementation and tests.
const Supported = false

// SeesDetached is false where Supported is.
func SeesDetached() bool { return false }

// IsTerminal reports whether f is a character device.
func IsTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// DespiteTOSTOP runs do.
func DespiteTOSTOP(do func()) { do() }
