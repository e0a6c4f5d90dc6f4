// Command hasp-torture disturbs the clients of a store, and judges what they believed. See
// docs/TORTURE.md, or hasp-torture --help.
package main

import (
	"os"

	_ "github.com/hasplock/hasp/cmd/hasp/stores"
	"github.com/hasplock/hasp/torture/internal/command"
)

func main() { os.Exit(command.Main()) }
