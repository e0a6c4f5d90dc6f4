//go:build unix

package torture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// adapter is a program that locks: the lock under test, in place of hasp's. docs/TORTURE.md has the
// protocol, which is interop's: one command a line, one line as the answer, one lock at a time.
type adapter struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	words   *tail
	alone   bool          // its process group is separate, and not that of a worker
	fifo    bool          // it promises that those who ask first are granted the lock first
	answers chan string   // has room for one
	gone    chan struct{} // closed when it has ended and what it said was read

	asking sync.Mutex // held from a command to its answer

	mu      sync.Mutex
	pending string          // the command that has no answer yet
	held    context.Context // ended by a notice; nil while it holds nothing
	lose    context.CancelFunc
	fault   error // what it did against the protocol
	status  error // how it ended
}

// adapterTask says how an adapter is started.
type adapterTask struct {
	Command string        // for sh
	Store   string        // its URL
	TTL     time.Duration // for HASP_TTL_MS
}

// environment has the store's URL: an argument could be read by every user of the machine.
func (t adapterTask) environment() []string {
	return append(os.Environ(), "HASP_STORE="+t.Store, "HASP_ADDRESS="+address(t.Store), fmt.Sprint("HASP_TTL_MS=", t.TTL.Milliseconds()))
}

// startAdapter returns when the program says that it is ready. In a worker it shares the worker's
// process group, so that what stops or kills the worker meets the program that holds the lock as
// well. alone gives it a separate one.
func startAdapter(ctx context.Context, s *starter, t adapterTask, alone bool) (*adapter, error) {
	a := &adapter{
		cmd: exec.Command("sh", "-c", "exec "+t.Command), words: &tail{}, alone: alone,
		answers: make(chan string, 1), gone: make(chan struct{}), pending: "ready",
	}
	a.cmd.Env, a.cmd.SysProcAttr = t.environment(), adapterAttr(alone)
	said, saying, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	words, wording, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, said.Close(), saying.Close())
	}
	a.cmd.Stdout, a.cmd.Stderr = saying, wording
	if a.in, err = a.cmd.StdinPipe(); err == nil {
		err = s.run(a.cmd.Start)
	}
	_, _ = saying.Close(), wording.Close()
	if err != nil {
		_, _ = said.Close(), words.Close()
		return nil, fmt.Errorf("start the adapter: %w", err)
	}
	var heard sync.WaitGroup
	heard.Go(func() { _, _ = io.Copy(a.words, words) })
	heard.Go(func() { a.hear(said) })
	go func() {
		a.wait(&heard, said, words)
		close(a.gone)
	}()
	line, err := a.answer(ctx, openBound, "ready")
	switch {
	case err == nil && !is(line, "ready"):
		err = fmt.Errorf("the adapter begins with %q, not with \"ready\"", line)
		fallthrough
	case err != nil:
		a.kill()
		return nil, err
	}
	a.fifo = slices.Contains(strings.Fields(line), "fifo")
	return a, nil
}

// mostWaitedForWords is how long what a program has left to say is waited for after its end: a
// process that it has left behind may keep the pipe open.
const mostWaitedForWords = time.Second

func (a *adapter) wait(heard *sync.WaitGroup, pipes ...*os.File) {
	status := a.cmd.Wait()
	for _, p := range pipes {
		_ = p.SetReadDeadline(time.Now().Add(mostWaitedForWords))
	}
	heard.Wait()
	for _, p := range pipes {
		_ = p.Close()
	}
	a.mu.Lock()
	a.status = status
	a.mu.Unlock()
}

// hear reads what the program says, until it breaks the protocol or says no more; in both cases it
// has no more use.
func (a *adapter) hear(said io.Reader) {
	lines := bufio.NewScanner(said)
	for lines.Scan() && a.take(lines.Text()) {
	}
	a.kill()
}

// take is one line. A notice counts from the grant to the answer to unlock; another may be late, of
// an earlier hold.
func (a *adapter) take(line string) (fine bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if is(line, "notice lost") {
		if a.lose != nil {
			a.lose()
		}
		return true
	}
	switch {
	case a.pending == "":
		a.fault = fmt.Errorf("the adapter says %q, and was asked nothing", line)
		return false
	case a.pending == "lock" && is(line, "ok"):
		a.held, a.lose = context.WithCancel(context.Background())
	case a.pending == "unlock" && a.lose != nil:
		a.lose()
		a.held, a.lose = nil, nil
	}
	a.pending = ""
	a.answers <- line // there is room: one answer to a command
	return true
}

// ask sends one command, and waits for the answer up to patience, or until ctx ends. A program that
// does not answer is killed: a later answer could be taken for that to another command.
func (a *adapter) ask(ctx context.Context, patience time.Duration, command, name string) (string, error) {
	a.asking.Lock()
	defer a.asking.Unlock()
	a.mu.Lock()
	a.pending = command
	a.mu.Unlock()
	// A pipe has room for a command. One that is closed is seen by gone, which says why.
	_, _ = io.WriteString(a.in, strings.TrimSpace(command+" "+name)+"\n")
	return a.answer(ctx, patience, command)
}

func (a *adapter) answer(ctx context.Context, patience time.Duration, command string) (string, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case line := <-a.answers:
		return line, nil
	case <-a.gone:
		select {
		case line := <-a.answers:
			return line, nil
		default:
			return "", a.why()
		}
	case <-ctx.Done():
		a.kill()
		return "", context.Cause(ctx)
	case <-late.C:
		a.mu.Lock()
		a.fault = fmt.Errorf("the adapter has not answered %q within %s", command, patience)
		a.mu.Unlock()
		a.kill()
		return "", a.why()
	}
}

// errEnded is of an adapter that has ended by itself, which is no fault of the protocol: it may
// have lost its connection.
var errEnded = errors.New("the adapter has ended")

// why says how the program ended. It waits for the end.
func (a *adapter) why() error {
	<-a.gone
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fault != nil {
		return a.fault
	}
	err := fmt.Errorf("%w with exit status 0", errEnded)
	if a.status != nil {
		err = fmt.Errorf("%w: %w", errEnded, a.status)
	}
	if words := a.words.String(); words != "" {
		err = fmt.Errorf("%w: %s", err, words)
	}
	return err
}

// kill ends the program. In a worker's group what it has started ends with the worker.
func (a *adapter) kill() {
	pid := a.cmd.Process.Pid
	if a.alone {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	_ = a.cmd.Process.Kill()
}

// end lets the program end by itself, and kills it if it takes longer.
func (a *adapter) end() {
	_ = a.in.Close()
	select {
	case <-a.gone:
	case <-time.After(mostWaitedForEnd):
		a.kill()
		<-a.gone
	}
}

// mostWaitedForEnd is how long an adapter may take to end after its input has.
const mostWaitedForEnd = 5 * time.Second

// is reports whether a line is a word, alone or with more behind it.
func is(line, word string) bool {
	rest, ok := strings.CutPrefix(line, word)
	return ok && (rest == "" || rest[0] == ' ' || rest[0] == '\r')
}
