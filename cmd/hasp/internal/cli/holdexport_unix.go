//go:build unix

package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
)

// keepVerb, as the first argument, makes a process of this binary a background holder. Behind it
// stand the number of the process that it is bound to, or 0, whether a pidfd of that is handed on,
// and the arguments of hasp hold.
const keepVerb = "__keep"

// The descriptors that a background holder inherits beside the standard files. Pipes: words to the
// holder, and its answer; and the pidfd of the process that it is bound to, if there is one. Else
// the shell's own descriptor may have that number.
const (
	wordsFD = 3 + iota
	answerFD
	boundFD
)

// The words to a background holder.
const (
	wordKeep = "keep" // the caller is about to be told
	wordDrop = "drop" // the caller could not be told
)

// holdExported starts a background holder, waits until it has the lock, and prints the text for the
// calling shell.
//
// If this process dies before it has said keep, the holder reads the end of the pipe and gives the
// lock back, or waits for it no longer: the shell has no text. It says keep before it prints. If it
// dies between the two, the lock is held and no shell knows it, until the shell ends: that costs
// the others time. The other order could cost the lock: a shell that works under one that was given
// back.
func (a *app) holdExported(x *exportFlags) error {
	b, err := bindFor(x)
	if err != nil {
		return exit.Usage("%v", err)
	}
	ctx, stop := interruptible()
	defer stop()
	c, err := a.startKeeper(b)
	if err != nil {
		return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: err}
	}
	answered := make(chan []byte, 1)
	go func() {
		line, _ := bufio.NewReader(c.answer).ReadBytes('\n') // a short line is none
		answered <- line
	}()
	var line []byte
	select {
	case line = <-answered:
	case <-ctx.Done():
	}
	var k kept
	if json.Unmarshal(line, &k) != nil || ctx.Err() != nil {
		c.words.Close()
		err := c.Wait()
		if ctx.Err() != nil {
			return exit.Of(interruption(ctx, ctx.Err()))
		}
		return keeperFailed(c.ProcessState.ExitCode(), err)
	}
	shell := 0 // with --pid the text may be for any shell
	if !x.given {
		shell = b.PID
	}
	text, err := a.shellText(k, shell)
	if err == nil {
		if err = c.say(wordKeep); err == nil {
			err = a.print("%s", text)
		}
	}
	if err != nil {
		_ = c.say(wordDrop) // an error means that it is dead
		return exit.Of(err)
	}
	return nil
}

// bindFor finds the process whose life bounds the lock's; nil if a time does.
func bindFor(x *exportFlags) (*bound.Process, error) {
	switch {
	case !x.given:
		return bound.ToCaller()
	case x.pid == 0:
		return nil, nil
	}
	return bound.To(x.pid)
}

// keeperFailed gives the holder's end its exit code. It has said why.
func keeperFailed(code int, err error) *exit.Failure {
	if code > 0 {
		return &exit.Failure{Code: code, Err: err, Told: true}
	}
	return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: errors.Join(errors.New("the background holder has died"), err)}
}

// keeperProcess is a background holder, as seen by the hasp that starts it.
type keeperProcess struct {
	*exec.Cmd
	words, answer *os.File
}

func (c *keeperProcess) say(word string) error {
	_, err := io.WriteString(c.words, word+"\n")
	return err
}

// startKeeper gives the holder a separate session: Ctrl-C is for the shell and its commands, and if
// the shell ends by it, so does the holder. It has no standard output, since $(...) waits for the
// last writer.
func (a *app) startKeeper(b *bound.Process) (*keeperProcess, error) {
	self, err := group.Executable()
	if err != nil {
		return nil, err
	}
	wordsIn, words, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wordsIn.Close()
	answer, answerOut, err := os.Pipe()
	if err != nil {
		words.Close()
		return nil, err
	}
	defer answerOut.Close()
	pid, files := 0, []*os.File{wordsIn, answerOut}
	if b != nil {
		pid = b.PID
		if b.File != nil {
			files = append(files, b.File)
		}
	}
	pidfd := strconv.FormatBool(b != nil && b.File != nil)
	c := exec.Command(self, append([]string{keepVerb, strconv.Itoa(pid), pidfd}, a.args...)...)
	c.Args[0] = os.Args[0]
	c.Stderr, c.ExtraFiles = os.Stderr, files
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		words.Close()
		answer.Close()
		return nil, err
	}
	return &keeperProcess{c, words, answer}, nil
}

// export is hold --export: in the hasp that the shell has started, or in the background holder.
func (a *app) export(names []string, f *runFlags, x *exportFlags) error {
	if a.keeper == nil {
		return a.holdExported(x)
	}
	f.statusFD, f.onAsk = -1, reaction{words: wordSay, text: wordSay}
	k := a.keeper
	k.app, k.flags, k.export = a, f, x
	return k.keep(names)
}
