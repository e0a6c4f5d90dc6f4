package cli

import (
	"fmt"
	"os"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// startpty NAME CMD ARGS: runs CMD as the leader of a session on a separate terminal; what the
// terminal shows goes to NAME.out, and type writes to it. A line of NAME.flow tells that Ctrl-S has
// had its effect, which is not when it is typed.
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
	// In packet mode each read begins with a byte: 0 for what is shown, flags otherwise.
	ts.Check(unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCPKT, 1))
	shown, flow := printed(ts, args[0]+".out"), printed(ts, args[0]+".flow")
	background(ts, args[0], c, master)
	go func() {
		for packet := make([]byte, 4096); ; {
			n, err := master.Read(packet)
			switch {
			case err != nil: // the terminal has ended
				return
			case packet[0] == unix.TIOCPKT_DATA:
				_, _ = shown.Write(packet[1:n])
			case packet[0]&unix.TIOCPKT_STOP != 0:
				fmt.Fprintln(flow, "stopped")
			}
		}
	}()
}

// endThread ends the thread that it is called on, which must be the goroutine's own.
func endThread() { _, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) }
