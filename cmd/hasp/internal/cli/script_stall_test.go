//go:build unix

package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// pipes are the descriptors 1, 2 and 3 of a process started by startpipes.
type pipes struct{ readers, writers []*os.File }

// startpipes NAME CMD ARGS: like start, with descriptors 1, 2 and 3 on pipes that are not read
// until they are drained.
func cmdStartPipes(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) >= 2, "startpipes NAME CMD [ARGS]")
	c := command(ts, args[1:])
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := c.StdinPipe()
	ts.Check(err)
	p := &pipes{}
	for range 3 {
		r, w, err := os.Pipe()
		ts.Check(err)
		ts.Defer(func() { r.Close(); w.Close() })
		p.readers, p.writers = append(p.readers, r), append(p.writers, w)
	}
	c.Stdout, c.Stderr, c.ExtraFiles = p.writers[0], p.writers[1], p.writers[2:]
	background(ts, args[0], c, input)
	find(ts, args[0]).pipes = p
}

// fill NAME: fills its pipes, so that every writer to one of them waits, as this one does.
func cmdFill(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) == 1, "fill NAME")
	for _, w := range find(ts, args[0]).pipes.writers {
		fd := []unix.PollFd{{Fd: int32(w.Fd()), Events: unix.POLLOUT}}
		go func() { _, _ = w.Write(bytes.Repeat([]byte(".\n"), 1<<18)) }() // more than any pipe holds
		eventually(ts, func() error {
			if n, err := unix.Poll(fd, 0); n > 0 || err != nil {
				return fmt.Errorf("the pipe takes more (%v)", err)
			}
			return nil
		})
	}
}

// drain NAME: reads its pipes from now on, into NAME.out, NAME.err and NAME.status.
func cmdDrain(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) == 1, "drain NAME")
	p := find(ts, args[0]).pipes
	for i, suffix := range []string{".out", ".err", ".status"} {
		to := printed(ts, args[0]+suffix)
		p.writers[i].Close()
		go func() { _, _ = io.Copy(to, p.readers[i]) }()
	}
}
