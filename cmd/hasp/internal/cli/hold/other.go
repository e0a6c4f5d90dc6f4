//go:build !unix

package hold

// Holder exists on Unix only.
type Holder struct{}

// Inherit finds none.
func Inherit(args []string) ([]string, *Holder) { return args, nil }

// Background says no.
func (*Holder) Background() bool { return false }

// Places finds none.
func Places(int) (pid int, sockets []string) { return 0, nil }

// Above finds none.
func Above() []string { return nil }
