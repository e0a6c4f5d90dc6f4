package cli

import (
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// startpty NAME CMD ARGS: runs CMD as the leader of a session on a terminal of its own;
// what the terminal shows goes to NAME.out, and type writes to it.
func cmdStartPTY(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, !neg && len(args) >= 2, "startpty NAME CMD [ARGS]")
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	ts.Check(err)
	ts.Check(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	ts.Check(err)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	ts.Check(err)
	defer slave.Close()
	c := command(ts, args[1:])
	c.Env = append(c.Env, "PS1=$ ", "TERM=dumb")
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	shown := output(ts, args[0]+".out")
	background(ts, args[0], c, master)
	go func() { _, _ = io.Copy(shown, master) }() // ends when the terminal does
}

// endThread ends the thread that it is called on, which must be the goroutine's own.
func endThread() { _, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) }
