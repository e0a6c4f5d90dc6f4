//go:build unix && !linux

package group

import (
	"os"
	"syscall"
)

// Here is no parent-death signal, and a process cannot adopt orphans: the guardian kills the whole
// group, and awaitGone polls.
func commandAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func guardianAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func adopt() {}

func executable() (string, error) { return os.Executable() }
