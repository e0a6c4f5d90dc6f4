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
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

// verb, as the first argument, makes a process of this binary a background holder. Behind it stand
// the number of the process that it is bound to, or 0, whether a pidfd of that is handed on, and
// the arguments of hasp hold.
const verb = "__keep"

// boundFD is the descriptor by which a background holder inherits the pidfd of the process that it
// is bound to, if there is one: else the shell's own descriptor may have that number.
const boundFD = 3

// The words to a background holder.
const (
	wordKeep = "keep" // the caller is about to be told
	wordDrop = "drop" // the caller could not be told
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
	c, words, answer, err := start(ctx, b, args)
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
	if _, err = io.WriteString(words, wordKeep+"\n"); err == nil {
		err = tell(s, shell)
	}
	if err != nil {
		_, _ = io.WriteString(words, wordDrop+"\n") // an error means that it is dead
		return exit.Of(err)
	}
	return nil
}

// start gives the holder a separate session: Ctrl-C is for the shell and its commands, and if the
// shell ends by it, so does the holder. Words to the holder go by its standard input, its answer by
// its standard output: $(...) waits for the last writer of ours. When ctx ends, so do the words.
func start(ctx context.Context, b *bound.Process, args []string) (c *exec.Cmd, words io.WriteCloser, answer io.Reader, err error) {
	self, err := group.Executable()
	if err != nil {
		return nil, nil, nil, err
	}
	pid, files := 0, []*os.File(nil)
	if b != nil {
		pid = b.PID
		if b.File != nil {
			files = append(files, b.File)
		}
	}
	c = exec.CommandContext(ctx, self, append([]string{verb, strconv.Itoa(pid), strconv.FormatBool(files != nil)}, args...)...)
	c.Args[0] = os.Args[0]
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
