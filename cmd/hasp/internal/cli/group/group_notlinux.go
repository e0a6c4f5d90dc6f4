//go:build unix && !linux

package group

import "os"

// adopt does nothing: here a process cannot adopt orphans, and awaitGone polls.
func adopt() {}

func executable() (string, error) { return os.Executable() }
