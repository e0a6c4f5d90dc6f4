package bound

import (
	"fmt"

	"golang.org/x/sys/unix"
)

func family(pid int) (f relation, err error) {
	k, err := unix.SysctlKinfoProc("kern.proc.pid", pid)
	if err != nil {
		return f, err
	}
	at := k.Proc.P_starttime
	return relation{parent: int(k.Eproc.Ppid), start: fmt.Sprintf("%x-%x", at.Sec, at.Usec), name: unix.ByteSliceToString(k.Proc.P_comm[:])}, nil
}
