//go:build unix && !linux

package torture

import "syscall"

// workerAttr puts a worker into a separate group, so that a terminal's signals reach the
// coordinator alone. It ends when its input does, so with the coordinator, unless it is stopped at
// that moment.
func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// adapterAttr is for an adapter, which ends when its input does, and with its worker's group.
func adapterAttr(alone bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: alone} }
