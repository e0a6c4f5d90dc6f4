package torture

import "syscall"

// workerAttr puts a worker into a separate group, so that a terminal's signals reach the
// coordinator alone, and has the kernel kill it with the coordinator.
func workerAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adapterAttr has the kernel kill an adapter with the process that started it, also one that is
// stopped.
func adapterAttr(alone bool) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: alone, Pdeathsig: syscall.SIGKILL}
}
