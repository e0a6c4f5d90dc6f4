package serverprocess

import (
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Ports are taken from below the range that the kernel gives to outgoing connections
// (32768 and up on Linux). Inside that range, a client dialling a server that is down
// can be given the server's own port as its source and so be connected to itself, and
// a restarting server can find its port in use.
const (
	firstPort = 10000
	lastPort  = 24000
)

// ReservePorts returns n TCP ports on 127.0.0.1 that are free and that no other process using this
// package gets until release is called or this process ends.
func ReservePorts(n int) (ports []int, release func(), err error) {
	var held []net.Listener
	release = func() {
		for _, l := range held {
			_ = l.Close()
		}
	}
	for range 1000 * n {
		if len(ports) == n {
			return ports, release, nil
		}
		port := firstPort + rand.IntN(lastPort-firstPort)
		if l := reserve(port); l != nil {
			ports, held = append(ports, port), append(held, l)
		}
	}
	release()
	return nil, nil, fmt.Errorf("no free ports between %d and %d", firstPort, lastPort)
}

// reserve returns a reservation, or nil if the port is in use or reserved by another process.
//
// A reservation is an abstract socket named after the port: exclusive, and the kernel
// lets go of it when its process ends. Holding the port itself is not possible, since
// the server must bind it, now and again after every restart.
func reserve(port int) net.Listener {
	reservation, err := net.Listen("unix", fmt.Sprintf("@hasp-backends-port-%d", port))
	if err != nil {
		return nil // another test has it
	}
	// A process that is forked meanwhile would keep the port in use until it is another program.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	l, err := net.Listen("tcp", Local(port))
	if err != nil {
		_ = reservation.Close()
		return nil // another process has it
	}
	_ = l.Close()
	return reservation
}
