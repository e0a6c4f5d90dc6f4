package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// patience bounds the wait for an event that must come. Only a fault takes that long. Calm leases
// are longer: a lock that is granted within it was not granted because one of them ended.
const patience = 2 * time.Minute

// process is a client that runs: see protocol.go for what is said to it.
type process struct {
	label   string // in messages
	version string
	cmd     *exec.Cmd
	in      io.Writer
	answers chan string // closed when it ends
	stderr  *tail
	killed  sync.Once
}

// start starts a client in a separate process group, so that a signal also reaches the tools that
// it starts, and returns when it is connected.
func start(label string, argv, env []string) (*process, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(cmd.Environ(), env...)
	cmd.SysProcAttr = ownGroup()
	p := &process{label: label, cmd: cmd, answers: make(chan string, 1), stderr: &tail{}}
	cmd.Stderr = p.stderr
	cmd.WaitDelay = time.Second // a tool that it leaves behind may hold the pipe
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.in = in
	// The signal for a parent's death means the thread's that started the child. Go ends a
	// thread only with a goroutine that is locked to it, and none is.
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", label, err)
	}
	go p.read(out)
	line, err := p.await(patience)
	if err == nil && !strings.HasPrefix(line, "ready ") {
		err = fmt.Errorf("%s begins with %q", label, line)
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	p.version = strings.TrimPrefix(line, "ready ")
	return p, nil
}

func (p *process) read(out io.Reader) {
	defer close(p.answers)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if !strings.HasPrefix(lines.Text(), "notice ") {
			p.answers <- lines.Text()
		}
	}
}

func (p *process) send(command ...any) error {
	_, err := fmt.Fprintln(p.in, command...)
	return err
}

// errNoAnswer: nothing came within the time.
var errNoAnswer = errors.New("no answer")

// await waits for one answer.
func (p *process) await(d time.Duration) (string, error) {
	select {
	case line, ok := <-p.answers:
		if !ok {
			p.kill() // and with it all that it has written has been read
			return "", fmt.Errorf("%s has ended: %s", p.label, p.stderr)
		}
		return line, nil
	case <-time.After(d):
		return "", fmt.Errorf("%s: %w within %s", p.label, errNoAnswer, d)
	}
}

func (p *process) ask(command ...any) (string, error) {
	if err := p.send(command...); err != nil {
		return "", err
	}
	return p.await(patience)
}

// awaitTime waits for an answer that must be "ok MICROS".
func (p *process) awaitTime(d time.Duration) (time.Time, error) {
	line, err := p.await(d)
	if err != nil {
		return time.Time{}, err
	}
	at, ok := parseTime(line)
	if !ok {
		return at, fmt.Errorf("%s answers %q", p.label, line)
	}
	return at, nil
}

// parseTime reads "ok MICROS [TOKEN]".
func parseTime(line string) (at time.Time, ok bool) {
	text, ok := strings.CutPrefix(line, "ok ")
	text, token, fenced := strings.Cut(text, " ")
	us, err := strconv.ParseInt(text, 10, 64)
	if fenced && err == nil {
		_, err = strconv.ParseUint(token, 10, 64)
	}
	if !ok || err != nil {
		return time.Time{}, false
	}
	return time.UnixMicro(us), true
}

// do sends a command that must succeed.
func (p *process) do(command ...any) (time.Time, error) {
	if err := p.send(command...); err != nil {
		return time.Time{}, err
	}
	at, err := p.awaitTime(patience)
	if err != nil {
		err = fmt.Errorf("%v: %w", command[0], err)
	}
	return at, err
}

// saysLost reports whether a client says that its lock is lost: when it is asked (libraries that
// learn of it from their server get some time), or when it releases the lock.
func (p *process) saysLost() bool {
	for end := time.Now().Add(hearsay); ; time.Sleep(50 * time.Millisecond) {
		answer, err := p.ask("check")
		if err != nil || strings.HasPrefix(answer, "lost") {
			return err == nil
		}
		if answer != "held" || time.Now().After(end) {
			break
		}
	}
	answer, err := p.ask("unlock")
	return err == nil && strings.HasPrefix(answer, "lost")
}

// blocked fails if the client, which was asked for a lock, has it by now.
func (p *process) blocked(d time.Duration, holder *process) error {
	line, err := p.await(d)
	switch {
	case errors.Is(err, errNoAnswer):
		return nil
	case err != nil:
		return err
	}
	return violation{1, fmt.Sprintf("%s answers %q while %s holds", p.label, line, holder.label)}
}

func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

func (p *process) stop()   { p.signal(syscall.SIGSTOP) }
func (p *process) resume() { p.signal(syscall.SIGCONT) }

// kill ends it by SIGKILL, stopped or not. A second call does nothing: its number may be another
// process's by then.
func (p *process) kill() {
	p.killed.Do(func() {
		p.signal(syscall.SIGKILL)
		for range p.answers { // until the reader is done: Wait closes the pipe
		}
		_ = p.cmd.Wait()
	})
}

// tail keeps the end of a program's error output.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	const most = 2000
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.text))
}

// self is this program, which is also the client for the libraries that it links.
func self() (string, error) { return os.Executable() }
