//go:build unix

package torture

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is one worker process, from start to end.
type process struct {
	client string // in the history
	cmd    *exec.Cmd
	in     io.WriteCloser
	said   *os.File
	words  *tail
	read   chan struct{} // closed when all of the words are read

	ready   chan struct{} // closed when it works
	exited  chan struct{} // closed when it is gone; status is set
	status  syscall.WaitStatus
	stopped chan struct{} // receives when the kernel has stopped it

	lingers chan string // receives the name that it was ordered to hold
}

// starter starts all workers from one thread that lives as long as the run: on Linux they are
// killed when the thread that has started them ends, even those that are stopped.
type starter struct{ jobs chan func() }

func newStarter() *starter {
	s := &starter{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

func (s *starter) close() { close(s.jobs) }

// run calls f on that thread.
func (s *starter) run(f func() error) error {
	done := make(chan error)
	s.jobs <- func() { done <- f() }
	return <-done
}

func (s *starter) start(argv []string, t task, ended func(why string)) (*process, error) {
	p := &process{
		client: t.Client, cmd: exec.Command(argv[0], argv[1:]...), words: &tail{}, read: make(chan struct{}),
		ready: make(chan struct{}), exited: make(chan struct{}), stopped: make(chan struct{}, 1), lingers: make(chan string, 1),
	}
	said, saying, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.said = said
	p.cmd.SysProcAttr = workerAttr()
	p.cmd.Stdout = saying
	words, wording, err := os.Pipe()
	if err == nil {
		p.cmd.Stderr = wording
		p.in, err = p.cmd.StdinPipe()
	}
	if err == nil {
		err = s.run(p.cmd.Start)
	}
	_ = saying.Close()
	if wording != nil {
		_ = wording.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	go func() {
		defer close(p.read)
		_, _ = io.Copy(p.words, words)
		_ = words.Close()
	}()
	go p.hear(ended)
	go p.wait()
	_ = json.NewEncoder(p.in).Encode(t) // one that has died already is seen by exited, which says why
	return p, nil
}

// wait is the only one that waits for the process: it sees both stops and the end.
func (p *process) wait() {
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &p.status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err == nil && p.status.Stopped():
			select {
			case p.stopped <- struct{}{}:
			default:
			}
		default:
			_ = p.signal(syscall.SIGKILL) // its adapters, where the kernel does not do it
			_ = p.in.Close()
			select {
			case <-p.read: // why it has ended
			case <-time.After(mostWaitedForWords): // another process has its standard error
			}
			close(p.exited)
			return
		}
	}
}

func (p *process) hear(ended func(why string)) {
	defer p.said.Close()
	for lines := bufio.NewScanner(p.said); lines.Scan(); {
		var r reply
		if json.Unmarshal(lines.Bytes(), &r) != nil {
			continue
		}
		if r.Ready {
			close(p.ready)
		}
		if r.Ended != "" {
			ended(r.Ended)
		}
		if r.Lingers != "" {
			select {
			case p.lingers <- r.Lingers:
			default: // it was not asked, or is not any more
			}
		}
	}
}

func (p *process) order(o order) { _ = json.NewEncoder(p.in).Encode(o) } // a dead one is seen by exited

func (p *process) gone() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// signal reaches the process and its adapters, which are all of its group. The group's number stays
// taken as long as one of them lives; no other process has it so soon after, since numbers are
// given out in turn.
func (p *process) signal(s syscall.Signal) error { return syscall.Kill(-p.cmd.Process.Pid, s) }

// stop returns true when the process stands still: the signal alone is only a request. Its adapters
// got the signal in the same moment. If one of them runs a little longer, it keeps its lock for as
// long: a late pause, and no wrong verdict.
func (p *process) stop() bool {
	select {
	case <-p.stopped: // of an earlier stop
	default:
	}
	if p.signal(syscall.SIGSTOP) != nil {
		return false
	}
	select {
	case <-p.stopped:
		return true
	case <-p.exited:
		return false
	}
}

func (p *process) resume() { _ = p.signal(syscall.SIGCONT) }

func (p *process) kill() {
	_ = p.signal(syscall.SIGKILL)
	<-p.exited
}

// end lets the process release what it holds and end, and kills it if it takes longer than
// patience. It reports whether it ended by itself.
func (p *process) end(patience time.Duration) bool {
	p.resume()
	_ = p.in.Close()
	select {
	case <-p.exited:
		return true
	case <-time.After(patience):
		p.kill()
		return false
	}
}

// why says how a process ended that was not told to.
func (p *process) why() string {
	text := fmt.Sprintf("it ended with status %d", p.status.ExitStatus())
	if p.status.Signaled() {
		text = "it was killed by the signal " + p.status.Signal().String()
	}
	if words := p.words.String(); words != "" {
		text += ": " + words
	}
	return text
}

// tail keeps the last line of what a process writes to standard error.
type tail struct {
	mu   sync.Mutex
	text string
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text += string(b)
	t.text = t.text[max(0, len(t.text)-4096):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(t.text), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "hasp-torture: ")
}
