package serverprocess

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// StartLimit is how long a server may take to serve, and PollEvery how often it is asked.
const (
	StartLimit = 3 * time.Minute // generous: both cores may be busy, and after a crash PostgreSQL syncs a thousand files
	PollEvery  = 5 * time.Millisecond

	stopLimit = 3 * time.Minute // PostgreSQL ends with a checkpoint, which waits for a disk that may be busy
)

// Command says how a server is started, at first and at every restart.
type Command struct {
	Name string // in messages: "redis-server 127.0.0.1:12345"
	Argv []string
	Env  []string // beside our own environment
	Dir  string   // working directory, below the scratch directory: the janitor goes by it
	User *Account // nil: ours

	// Ready asks the server by its own protocol whether it serves. A bare connect would
	// not do: the kernel accepts long before a server answers, and a server that loads
	// its data answers with an error.
	Ready func() error

	// Fault is in the log of a server that a known fault has ended, after which the next start may succeed: if that
	// was at its start it is started again, as a service manager would do. "": there is no such fault.
	Fault string

	Stop    os.Signal // asks for a clean end
	Release func()    // gives the ports back
}

// Process is a running server, or one that was stopped and can be restarted.
type Process struct {
	command Command

	mu      sync.Mutex // one transition at a time
	running *running   // nil: stopped
	from    int64      // where the log of the last start begins
}

// running is one life of a Process.
type running struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed after err is set
	err    error
}

// Start starts a server; after an error nothing is left of it.
func Start(c Command) (*Process, error) {
	p := &Process{command: c}
	if err := p.Restart(); err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	return p, nil
}

// Restart starts the server again on the same address and data and returns when it
// serves. One that is still running is stopped cleanly first. A member of etcd or
// ZooKeeper serves only with a majority: see RestartAll.
func (p *Process) Restart() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.end(p.command.Stop); err != nil {
		return err
	}
	for n := 1; ; n++ {
		err := p.launch()
		if err == nil || n == starts || !p.mayPass() {
			return err
		}
		time.Sleep(10 * PollEvery)
	}
}

// starts is how often a server is started that cannot start for a reason that passes.
const starts = 20

// mayPass reports whether the reason for which a server could not start may have gone by itself: its port is in use, or
// see Command.Fault. A process that this one has forked keeps our sockets until it becomes another program, which may take a
// busy machine a while: that of reserve, or what the server before had. p.mu is held.
func (p *Process) mayPass() bool {
	return strings.Contains(strings.ToLower(p.lastLog()), "address already in use") || p.hadFault()
}

func (p *Process) hadFault() bool {
	return p.command.Fault != "" && strings.Contains(p.lastLog(), p.command.Fault)
}

// lastLog is the log of the last start. p.mu is held.
func (p *Process) lastLog() string {
	b, err := os.ReadFile(p.logFile())
	if err != nil {
		return ""
	}
	return string(b[min(p.from, int64(len(b))):])
}

// launch starts the server and waits until it serves. p.mu is held.
func (p *Process) launch() error {
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own copy
	if p.from, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}

	c := p.command
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.Env = append(cmd.Environ(), c.Env...)
	// Not this process's stdout: go test waits for every process that holds it.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = Attributes(c.User)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.Name, err)
	}
	r := &running{cmd: cmd, exited: make(chan struct{})}
	go func() {
		r.err = cmd.Wait()
		close(r.exited)
	}()
	p.running = r
	if err := p.awaitReady(); err != nil {
		err = fmt.Errorf("start %s: %w\n%s", c.Name, err, p.Logs())
		return errors.Join(err, p.end(os.Kill))
	}
	return nil
}

func (p *Process) awaitReady() error {
	for deadline := time.Now().Add(StartLimit); ; {
		err := p.command.Ready()
		if err == nil {
			return nil
		}
		select {
		case <-p.running.exited:
			return fmt.Errorf("it ended at once: %v", p.running.err)
		case <-time.After(PollEvery):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("it does not serve after %v: %w", StartLimit, err)
		}
	}
}

// EndedByFault reports whether the server has ended by itself, by the known fault (Command.Fault).
func (p *Process) EndedByFault() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return false
	}
	select {
	case <-p.running.exited:
		return p.hadFault()
	default:
		return false
	}
}

// Stop ends the server as its administrator would. It keeps its data.
func (p *Process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(p.command.Stop)
}

// Kill ends the server and all its children by SIGKILL and returns when they are gone.
func (p *Process) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.end(os.Kill)
}

// end stops the server if it runs, paused or not, and waits until it is gone. A server
// that does not heed sig is killed, and that is an error. p.mu is held.
func (p *Process) end(sig os.Signal) error {
	r := p.running
	if r == nil {
		return nil
	}
	var refused error
	if sig != os.Kill {
		thaw(r.cmd.Process)
		if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s: %w", p.command.Name, err)
		}
		select {
		case <-r.exited:
			p.running = nil
			return nil
		case <-time.After(stopLimit):
			refused = fmt.Errorf("stop %s: it had to be killed after %v\n%s", p.command.Name, stopLimit, p.Logs())
		}
	}
	// The children are killed as well, and awaited: PostgreSQL's live on for a moment
	// without their parent, and their shared memory keeps the next server from starting.
	children := freeze(r.cmd.Process)
	_ = r.cmd.Process.Kill() // fails only if it is gone already
	<-r.exited
	p.running = nil
	return errors.Join(refused, killAll(children))
}

// Pause freezes the server and all its children by SIGSTOP: connections stay open and
// new ones are accepted by the kernel, but nothing is answered until Resume.
func (p *Process) Pause() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return fmt.Errorf("pause %s: it does not run", p.command.Name)
	}
	freeze(p.running.cmd.Process)
	return nil
}

// Resume ends Pause.
func (p *Process) Resume() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return fmt.Errorf("resume %s: it does not run", p.command.Name)
	}
	thaw(p.running.cmd.Process)
	return nil
}

// Name is the server in messages.
func (p *Process) Name() string { return p.command.Name }

// Pid is the process id of the server, 0 while it is stopped.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == nil {
		return 0
	}
	return p.running.cmd.Process.Pid
}

// Logs returns the end of what the server has written in all its lives, for the message
// of a failing test.
func (p *Process) Logs() string {
	const most = 8 << 10
	b, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

func (p *Process) logFile() string { return filepath.Join(p.command.Dir, "log") }

// Discard kills the server and removes what it leaves. It is not used again.
func (p *Process) Discard() error {
	defer p.command.Release()
	return errors.Join(p.Kill(), os.RemoveAll(p.command.Dir))
}
