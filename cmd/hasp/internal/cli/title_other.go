//go:build !unix

package cli

import "os"

// takeArgs copies the arguments. What the system shows of them cannot be changed here.
func takeArgs() []string { return append([]string(nil), os.Args[1:]...) }
