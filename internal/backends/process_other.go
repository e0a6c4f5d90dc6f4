//go:build !linux

package backends

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// Other systems only build: need skips every test before anything below is called.
const supported = false

const (
	terminate = syscall.SIGTERM
	interrupt = syscall.SIGINT
)

var errSystem = errors.New("real servers are started on Linux only")

type account struct{ uid, gid int }

func accountFor(string) (*account, error)                       { return nil, errSystem }
func attributes(*account) *syscall.SysProcAttr                  { return nil }
func freeze(*os.Process) []int                                  { return nil }
func thaw(*os.Process)                                          {}
func killAll([]int) error                                       { return errSystem }
func startJanitor(string) (io.Closer, error)                    { return nil, errSystem }
func lockFile(string) (unlock func(), err error)                { return nil, errSystem }
func reservePorts(int) (ports []int, release func(), err error) { return nil, nil, errSystem }
