package serverprocess

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
)

// janitorScript waits until its standard input ends, ends every process that works in a
// directory below $1, and removes $1.
//
// The end of the input is the end of the test process: it holds the only write end of the pipe, and
// the kernel closes it however the process ends, kill -9 included.
//
// The alternatives: a signal at the parent's death (PR_SET_PDEATHSIG) is tied to the thread that
// started the child, does not reach the child's children, and leaves the data behind. TestMain or
// tb.Cleanup do not run when a test times out or is killed. Searching by working directory also
// finds PostgreSQL's children, stopped or not, and never another process: the directory's name is
// unique.
//
// It asks for a clean end first: killed, PostgreSQL leaves shared memory behind, which
// only the next start on the same data would remove. After a second it kills. It
// repeats because a process may fork between our look and its death.
const janitorScript = `
cat >/dev/null
round=0
while :; do
	found= signal=TERM
	[ $((round += 1)) -lt 20 ] || signal=KILL
	for p in /proc/[0-9]*; do
		case $(readlink "$p/cwd") in
		"$1" | "$1"/*) kill -$signal "${p#/proc/}" && found=1 ;;
		esac
	done 2>/dev/null
	[ -n "$found" ] || break
	sleep 0.05
done
rm -rf -- "$1"
`

// startJanitor starts a process that cleans up below dir once the returned pipe closes, which
// happens when this process ends: no other code closes it.
func startJanitor(dir string) (io.Closer, error) {
	cmd := exec.Command("/bin/sh", "-c", janitorScript, "janitor", dir)
	cmd.Dir = "/" // not below dir, or it would kill itself
	// A separate session: a Ctrl-C or a hang-up in the terminal is not for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the janitor: %w", err)
	}
	return pipe, nil // never waited for: it ends after us
}
