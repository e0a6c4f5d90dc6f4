//go:build unix

package hold

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/internal/exit"
)

// verb, as the first argument, makes a process of this binary a background holder. Behind it stand
// the ID of the process that it is bound to, or 0, whether a pidfd of that is handed on, the
// directory for its socket, or "", and the arguments of hasp hold.
const verb = "__keep"

// boundFD is the descriptor by which a background holder inherits the pidfd of the process that it
// is bound to, if there is one: else the shell's own descriptor may have that number.
const boundFD = 3

// The words to a background holder.
const (
	wordKeep  = "keep"  // the caller is about to be told
	wordQuiet = "quiet" // the same, and nothing more is to be said
	wordDrop  = "drop"  // the caller could not be told
)

// Start starts a background holder with the arguments of this hasp, waits until it has the lock,
// and has tell print the text for the calling shell. The lock is bound to the life of process pid,
// if that is not 0. Only the shell that is found as [Caller] is given to tell: else the text may be
// for any shell.
//
// If this process dies before it has said keep, the holder reads the end of the pipe and gives the
// lock back, or waits for it no longer: the shell has no text. It says keep before it prints. If it
// dies between the two, the lock is held and no shell knows it, until the shell ends: that costs
// the others time. The other order could cost the lock: a shell that works under one that was given
// back.
func Start(ctx context.Context, pid int, args []string, tell func(s State, shell int) error) error {
	var b *bound.Process
	var err error
	shell := 0
	switch pid {
	case 0:
	case Caller:
		if b, err = bound.ToCaller(); err == nil {
			shell = b.PID
		}
	default:
		b, err = bound.To(pid)
	}
	if err != nil {
		return exit.Usage("%v", err)
	}
	return launch(ctx, b, "", nil, args, func(s State) error { return tell(s, shell) })
}

// launch starts a holder, and has tell print its first answer. own is added to its environment.
func launch(ctx context.Context, b *bound.Process, dir string, own, args []string, tell func(State) error) error {
	c, words, answer, err := start(ctx, b, dir, own, args)
	if err != nil {
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: err}
	}
	var s State
	if json.NewDecoder(answer).Decode(&s) != nil || ctx.Err() != nil {
		words.Close()
		err, code := c.Wait(), c.ProcessState.ExitCode()
		switch {
		case ctx.Err() != nil:
			return exit.Of(context.Cause(ctx))
		case code > 0: // it has said why
			return &exit.Failure{Code: code, Err: err, Told: true}
		}
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: fmt.Errorf("the background holder has died: %w", err)}
	}
	word := wordKeep
	if substituted(b) {
		word = wordQuiet
	}
	if _, err = io.WriteString(words, word+"\n"); err == nil {
		err = tell(s)
	}
	if err != nil {
		_, _ = io.WriteString(words, wordDrop+"\n") // an error means that it is dead
		return exit.Of(err)
	}
	return nil
}

// substituted reports that standard error is a pipe that is read to its end, and that the shell
// itself has not: as in x=$(hasp hold --export NAME 2>&1). A holder that kept it would keep the
// shell waiting for as long as it holds.
func substituted(b *bound.Process) bool {
	ours, err := os.Stderr.Stat()
	if err != nil || ours.Mode()&os.ModeNamedPipe == 0 {
		return false
	}
	if out, err := os.Stdout.Stat(); err == nil && os.SameFile(out, ours) {
		return true
	}
	if b == nil {
		return false
	}
	shells, err := os.Stat(fmt.Sprintf("/proc/%d/fd/2", b.PID)) // on Linux
	return err == nil && !os.SameFile(shells, ours)
}

// start gives the holder a separate session: Ctrl-C is for the shell and its commands, and if the
// shell ends by it, so does the holder. Words to the holder go by its standard input, its answer by
// its standard output: $(...) waits for the last writer of ours. When ctx ends, so do the words.
func start(ctx context.Context, b *bound.Process, dir string, own, args []string) (c *exec.Cmd, words io.WriteCloser, answer io.Reader, err error) {
	self, err := group.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	id, files := "0", []*os.File(nil)
	if b != nil {
		id = b.ID()
		if b.File != nil {
			files = append(files, b.File)
		}
	}
	c = exec.CommandContext(ctx, self, append([]string{verb, id, strconv.FormatBool(files != nil), dir}, args...)...)
	c.Args[0], c.Env = os.Args[0], append(os.Environ(), own...)
	c.Stderr, c.ExtraFiles, c.SysProcAttr = os.Stderr, files, &syscall.SysProcAttr{Setsid: true}
	if words, err = c.StdinPipe(); err == nil {
		answer, err = c.StdoutPipe()
	}
	if err == nil {
		c.Cancel = words.Close
		err = c.Start()
	}
	return c, words, answer, err
}
