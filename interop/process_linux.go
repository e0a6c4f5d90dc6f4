package main

import "syscall"

// ownGroup has a client die with us: one that waits for a lock would not see its input end.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
