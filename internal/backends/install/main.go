// Command install puts the servers for tests and benchmarks onto this machine.
package main

import (
	"fmt"
	"os"

	"github.com/hasplock/hasp/internal/backends"
)

func main() {
	if err := backends.Install(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
