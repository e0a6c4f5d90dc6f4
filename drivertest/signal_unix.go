//go:build unix

package drivertest

import (
	"errors"
	"syscall"
)

const canStop = true

// stop returns when the child has stopped. The signal alone is only a request.
func (p *process) stop() {
	p.env.Helper()
	p.signal(syscall.SIGSTOP)
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			p.env.Fatalf("the child has not stopped: status %#x, %v", status, err)
		}
		return
	}
}

// resume continues a child that was stopped.
func (p *process) resume() {
	p.env.Helper()
	p.signal(syscall.SIGCONT)
}
