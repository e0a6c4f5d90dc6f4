//go:build unix && !linux

package group

import (
	"os"
	"syscall"
)

// adopt does nothing: here a process cannot adopt orphans, and awaitGone polls.
func adopt() {}

func executable() (string, error) { return os.Executable() }

// onParentDeath does nothing: the guardian alone sees to a group whose hasp is dead.
func onParentDeath(*syscall.SysProcAttr, syscall.Signal) {}

// KeepIgnored: Go sees to HUP and INT. What became of others is not known here.
func KeepIgnored() {}
