//go:build !unix

package drivertest

// canStop: there is no signal that stops a process here.
const canStop = false

func (p *process) stop()   { p.env.Fatal("processes cannot be stopped on this system") }
func (p *process) resume() { p.env.Fatal("processes cannot be stopped on this system") }
