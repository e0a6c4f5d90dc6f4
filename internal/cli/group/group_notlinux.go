//go:build unix && !linux

package group

import (
	"os"
	"syscall"
)

// There is no parent-death signal and nobody may adopt orphans here: the guardian kills
// the whole group, and awaitGone looks from time to time.
func commandAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func guardianAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

func adopt() {}

func executable() (string, error) { return os.Executable() }
