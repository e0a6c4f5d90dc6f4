//go:build !linux

package serve

import (
	"errors"
	"syscall"
)

// readiness is of Linux alone: elsewhere a goroutine reads each parked connection.
type readiness struct{}

func newReadiness(func(id uint64)) (*readiness, error) { return nil, errors.ErrUnsupported }

func (*readiness) watch(syscall.Conn, uint64) bool { return false }

func (*readiness) close() {}
