//go:build !linux

package serverprocess

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// Supported: nothing below is called unless it is true.
const Supported = false

const (
	Terminate = syscall.SIGTERM
	Interrupt = syscall.SIGINT
)

var errSystem = errors.New("real servers are started on Linux only")

// Account is a user to run a server as.
type Account struct{ uid, gid int }

// Here they do nothing.
func AccountFor(string) (*Account, error)                       { return nil, errSystem }
func Attributes(*Account) *syscall.SysProcAttr                  { return nil }
func freeze(*os.Process) []int                                  { return nil }
func thaw(*os.Process)                                          {}
func Gone(int) bool                                             { return true }
func killAll([]int) error                                       { return errSystem }
func startJanitor(string) (io.Closer, error)                    { return nil, errSystem }
func ReservePorts(int) (ports []int, release func(), err error) { return nil, nil, errSystem }
