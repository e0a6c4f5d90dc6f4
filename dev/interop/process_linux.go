package main

import "syscall"

// ownGroup makes a client die with this program: one that waits for a lock would not see its input
// end.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
