//go:build !unix

// Package command is the hasp-torture command, on systems that can stop a process.
package command

import (
	"fmt"
	"os"
)

// Main refuses.
func Main() int {
	fmt.Fprintln(os.Stderr, "hasp-torture: this system cannot stop a process, and so cannot disturb one")
	return 78
}
