//go:build unix

// Command holder runs its second argument as a shell script in a group, and writes to descriptor 3
// what happens: its first argument and the event. It is for the tests that kill a thousand of them:
// hasp itself takes three times as long to start. They are here and not in package group, whose tests
// run groups in the test's own process, and such a process reaps every child.
package main

import (
	"fmt"
	"os"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/internal/signals"
)

func main() {
	signals.KeepIgnored()
	log, name := os.NewFile(3, "log"), os.Args[1]
	g, err := group.Start("/bin/sh", []string{"sh", "-c", os.Args[2]}, os.Environ(), false)
	if err != nil {
		fmt.Fprintln(log, name, "not started:", err)
		os.Exit(1)
	}
	for {
		switch e := <-g.Events(); e.Kind {
		case group.Exited:
			fmt.Fprintln(log, name, "exited", e.Status.ExitCode())
		case group.Guarded:
			fmt.Fprintln(log, name, "guarded")
		case group.Gone:
			fmt.Fprintln(log, name, "gone")
			return
		default:
			fmt.Fprintln(log, name, "unexpected", e)
		}
	}
}
