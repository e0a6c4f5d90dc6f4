package torture

import "syscall"

// workerAttr puts a worker into a separate group, so that a terminal's signals reach the coordinator
// alone, and has the kernel kill it with the coordinator.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
