//go:build unix

// Command holder runs each of its arguments as a shell script in a separate group, all at once, and
// writes to descriptor 3 what happens: the number of the script and the event. It is for the tests
// that kill it with a thousand groups: hasp itself takes three times as long to start. They are
// here and not in package group, whose tests run groups in the test's own process, and such a
// process reaps every child.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

func main() {
	group.KeepIgnored()
	log := os.NewFile(3, "log")
	var all sync.WaitGroup
	for i, script := range os.Args[1:] {
		g, err := group.Start("/bin/sh", []string{"sh", "-c", script}, os.Environ(), false)
		if err != nil {
			fmt.Fprintln(log, i, "not started:", err)
			os.Exit(1)
		}
		all.Go(func() {
			for e := range g.Events() {
				switch e.Kind {
				case group.Exited:
					fmt.Fprintln(log, i, "exited", e.Status.ExitCode())
				case group.Guarded:
					fmt.Fprintln(log, i, "guarded")
				case group.Gone:
					fmt.Fprintln(log, i, "gone")
					return
				default:
					fmt.Fprintln(log, i, "unexpected", e)
				}
			}
		})
	}
	all.Wait()
}
