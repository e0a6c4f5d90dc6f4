//go:build unix

package hold

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/signals"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"golang.org/x/sys/unix"
)

// Lock tells a background holder what it holds, and until when.
type Lock struct {
	Lost     <-chan struct{}
	State    func() State // held, or lost and why
	Release  func() error
	Acquired time.Time
	MaxHold  time.Duration     // since then; 0: no limit
	OnLost   syscall.Signal    // for the process that the holder is bound to; 0: none
	Requests <-chan hasp.Owner // for the lock
	Silent   bool              // nothing is said once the lock is held

	Say, Detail func(format string, args ...any) // tell people; of each step
}

// Holder is a background holder: the process that has the lock of hold --export. It ends, and gives
// the lock back, with the process that it is bound to, at --max-hold, on a signal that asks to end,
// or when hasp release --mine asks for it. If it is killed, the store frees the lock as after any
// death.
//
// After a loss it stays, to say so when it is asked. It has one loop, and so one opinion on its
// state.
type Holder struct {
	Lock
	name  string
	bound *bound.Process // nil: bound to a time only
	words <-chan string
	asked chan *request
}

// Inherit recognises the arguments of a background holder, and returns those of hasp hold.
func Inherit(args []string) (rest []string, h *Holder) {
	if len(args) < 3 || args[0] != verb {
		return args, nil
	}
	pid, err := strconv.Atoi(args[1])
	pidfd, perr := strconv.ParseBool(args[2])
	if err != nil || perr != nil {
		return args, nil
	}
	words := make(chan string)
	go func() { // ends with the hasp that has started us
		defer close(words)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			words <- in.Text()
		}
	}()
	h = &Holder{words: words, asked: make(chan *request)}
	if pid != 0 {
		h.bound = &bound.Process{PID: pid}
		if pidfd {
			h.bound.File = os.NewFile(boundFD, "pidfd")
		}
	}
	return args[3:], h
}

// WhileAwaited returns a context that ends with the hasp that has started this process: no shell
// will be told of the lock. stop returns an error if that was so, and must be called before Keep.
func (h *Holder) WhileAwaited(ctx context.Context) (awaited context.Context, stop func() error) {
	awaited, cancel := context.WithCancel(ctx)
	var alone error // read after stopped is closed
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-h.words: // too early for any word: the pipe has ended
			alone = &exit.Failure{Code: exit.CodeSignal + int(syscall.SIGHUP), Outcome: exit.OutcomeInterrupted, Err: signals.Interrupted{Signal: syscall.SIGHUP}, Told: true}
			cancel()
		case <-awaited.Done():
		}
	}()
	return awaited, func() error {
		cancel()
		<-stopped
		return alone
	}
}

// Keep tells of the lock and holds it, at most until ctx ends. It returns the state in which it
// ends.
func (h *Holder) Keep(ctx context.Context, l Lock) (State, error) {
	socket, err := listenPrivately()
	if err != nil {
		return State{}, exit.Misconfigured("no place for the socket of the background holder: %w", err)
	}
	defer socket.close()
	h.Lock = l
	state := h.State()
	h.name, state.Socket = state.Name, socket.path
	if err := json.NewEncoder(os.Stdout).Encode(state); err != nil || <-h.words != wordKeep {
		return h.release(), nil
	}
	os.Stdout.Close()
	if h.Silent { // the job may be over long before us, and its reader waits for the last writer
		if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
			_ = unix.Dup2(int(null.Fd()), 2)
		}
	}
	go socket.serve(h.asked)
	return h.loop(ctx), nil
}

func (h *Holder) loop(ctx context.Context) State {
	var unbound <-chan struct{}
	if h.bound != nil {
		unbound = h.bound.Ended()
	}
	var overdue <-chan time.Time
	if h.MaxHold > 0 {
		overdue = time.After(time.Until(h.Acquired.Add(h.MaxHold)))
	}
	lost := h.Lost
	for {
		select {
		case word, more := <-h.words:
			if word == wordDrop {
				return h.release()
			}
			if !more {
				h.words = nil
			}
		case <-unbound:
			h.Detail("process %d has ended; releasing %q", h.bound.PID, h.name)
			return h.release()
		case <-overdue:
			h.Say("%q is held for %s, the longest allowed; releasing it", h.name, view.Brief(h.MaxHold))
			return h.release()
		case <-ctx.Done():
			return h.release()
		case <-lost:
			lost = nil
			h.tellLoss()
		case by := <-h.Requests:
			h.Say("%s asks for %q: %s", view.Owner(by), h.name, view.Clean(by.Asks))
		case r := <-h.asked:
			if r.word == AskRelease {
				state := h.release()
				r.reply(state)
				return state
			}
			r.reply(h.State())
		}
	}
}

// tellLoss tells people, and the process as --on-lost says. That process is a shell, perhaps in the
// middle of a command that does not get the signal: unlike hasp run, a background holder cannot end
// all of the work before the store may hand the lock on.
func (h *Holder) tellLoss() {
	sent := ""
	if h.bound != nil && h.OnLost != 0 {
		sent = fmt.Sprintf("; process %d was sent %s", h.bound.PID, signals.Name(h.OnLost))
		if err := h.bound.Signal(h.OnLost); err != nil { // before the store is asked
			sent = fmt.Sprintf("; process %d could not be sent %s: %v", h.bound.PID, signals.Name(h.OnLost), err)
		}
	}
	h.Say("%s%s", h.State().Message, sent)
}

// release gives the lock back and says how that went.
func (h *Holder) release() State {
	state := h.State()
	err := h.Release()
	switch {
	case err == nil:
		state.State = "released"
	case errors.Is(err, hasp.ErrLost):
		state.State, state.Exit = "lost", exit.CodeLost
		if state.Message == "" {
			state.Message = err.Error() // only the release has found out
		}
	default: // the TTL finishes it
		state.State, state.Message = "released", err.Error()
	}
	return state
}

// request is one question to a background holder.
type request struct {
	conn net.Conn
	word string
}

// reply answers. A client that has gone needs no answer.
func (r *request) reply(s State) {
	_ = json.NewEncoder(r.conn).Encode(s)
	r.conn.Close()
}

// privateSocket is in a separate directory that no other user can enter.
type privateSocket struct {
	net.Listener
	dir, path string
}

// listenPrivately puts the socket below the user's runtime directory, or a temporary one. The path
// of a socket has at most about 100 bytes, and ':' separates paths in HASP_HOLD.
func listenPrivately() (*privateSocket, error) {
	var errs error
	for _, parent := range []string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"} {
		if parent == "" || parent[0] != '/' || len(parent) > 70 || strings.Contains(parent, ":") {
			continue
		}
		dir, err := os.MkdirTemp(parent, "hasp-hold-")
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		s := &privateSocket{dir: dir, path: dir + "/s"}
		if s.Listener, err = net.Listen("unix", s.path); err == nil {
			return s, nil
		}
		_ = os.RemoveAll(dir)
		errs = errors.Join(errs, err)
	}
	return nil, errs
}

func (s *privateSocket) close() {
	s.Close()
	_ = os.RemoveAll(s.dir)
}

// serve passes on what clients ask, one after the other, until the socket is closed.
func (s *privateSocket) serve(asked chan<- *request) {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(askBound))
		word, err := bufio.NewReader(io.LimitReader(conn, 64)).ReadString('\n')
		if err != nil {
			conn.Close()
			continue
		}
		asked <- &request{conn, word[:len(word)-1]}
	}
}
