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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
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

// Wait is a lock that is waited for.
type Wait struct {
	State func() State // asks the store for the place
	Leave func()       // gives the place up; Got then answers soon
	Got   <-chan Got
}

// Got is the end of a wait: a lock, or why there is none.
type Got struct {
	Lock
	Failed *exit.Failure
}

// Holder is a background holder: the process that has the lock of hold --export or --background.
// It ends, and gives the lock or its place back, with the process that it is bound to, at
// --max-hold, on a signal that asks to end, or when hasp release --mine asks for it. If it is
// killed, the store frees the lock as after any death.
//
// After a loss it stays, to say so when it is asked. So does one of --background whose wait or
// --max-hold is over: no variable of its shell remembers that there was one. It has one loop, and
// so one opinion on its state.
type Holder struct {
	Lock
	wait    *Wait         // nil: it has the lock, or is over
	over    *State        // of a holder of --background that only tells how it has ended
	settled chan struct{} // closed when the wait is over
	first   State         // as the user was told at the start
	name    string
	bound   *bound.Process // nil: bound to a time only
	dir     string         // for the socket of --background; "": a private one
	words   <-chan string
	asked   chan *request
	last    *request // asked for the release
}

// Background reports whether it is one of hold --background.
func (h *Holder) Background() bool { return h.dir != "" }

// Inherit recognises the arguments of a background holder, and returns those of hasp hold.
func Inherit(args []string) (rest []string, h *Holder) {
	if len(args) < 4 || args[0] != verb {
		return args, nil
	}
	b := bound.ByID(args[1])
	pidfd, err := strconv.ParseBool(args[2])
	if err != nil || b == nil && args[1] != "0" {
		return args, nil
	}
	words := make(chan string)
	go func() { // ends with the hasp that has started us
		defer close(words)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			words <- in.Text()
		}
	}()
	if pidfd && b != nil {
		b.File = os.NewFile(boundFD, "pidfd")
	}
	return args[4:], &Holder{bound: b, dir: args[3], words: words, asked: make(chan *request), settled: make(chan struct{})}
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

// Note adds to a note for others the process that the holder is for: its own number tells them
// nothing.
func (h *Holder) Note(text string) string {
	if with := text + ", for " + h.bound.String(); len(with) <= 1024 { // the longest note
		return with
	}
	return text
}

// Keep tells of the lock and holds it, at most until ctx ends. It returns the state in which it
// ends.
func (h *Holder) Keep(ctx context.Context, l Lock) (State, error) {
	h.Lock = l
	return h.stay(ctx)
}

// Await is Keep for a lock that is still waited for.
func (h *Holder) Await(ctx context.Context, w *Wait) (State, error) {
	h.wait = w
	return h.stay(ctx)
}

func (h *Holder) stay(ctx context.Context) (State, error) {
	socket, err := h.listen()
	if err != nil {
		return State{}, exit.Misconfigured("no place for the socket of the background holder: %w", err)
	}
	defer socket.close()
	state := h.state()
	h.first, h.name, state.Socket = state, state.Name, socket.path
	if err := json.NewEncoder(os.Stdout).Encode(state); err != nil {
		return h.release(), nil
	}
	word := <-h.words
	if word != wordKeep && word != wordQuiet {
		return h.release(), nil
	}
	os.Stdout.Close()
	if h.Silent || h.wait != nil || word == wordQuiet { // the job may be over long before us, and its reader waits for the last writer
		if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
			_ = unix.Dup2(int(null.Fd()), 2)
		}
	}
	return h.until(ctx, socket), nil
}

// until holds until the end. A release is answered when the socket is gone: a later call must not
// meet a holder that is over, and take that for a loss.
func (h *Holder) until(ctx context.Context, socket *privateSocket) State {
	go socket.serve(h)
	state := h.loop(ctx)
	socket.close()
	if h.last != nil {
		h.last.reply(state)
	}
	return state
}

func (h *Holder) state() State {
	switch {
	case h.over != nil:
		return *h.over
	case h.wait != nil:
		return h.wait.State()
	}
	return h.State()
}

func (h *Holder) loop(ctx context.Context) State {
	var unbound <-chan struct{}
	if h.bound != nil {
		unbound = h.bound.Ended()
	}
	var got <-chan Got
	var lost <-chan struct{}
	var overdue <-chan time.Time
	held := func() {
		if lost = h.Lost; h.MaxHold > 0 {
			overdue = time.After(time.Until(h.Acquired.Add(h.MaxHold)))
		}
	}
	if h.wait != nil {
		got = h.wait.Got
	} else {
		held()
	}
	for {
		select {
		case g := <-got:
			got = nil
			if h.settle(g); h.over == nil {
				held()
			}
		case word, more := <-h.words:
			if word == wordDrop {
				return h.release()
			}
			if !more {
				h.words = nil
			}
		case <-unbound:
			h.detail("process %d has ended; releasing %q", h.bound.PID, h.name)
			return h.release()
		case <-overdue:
			h.Say("%q is held for %s, the longest allowed; releasing it", h.name, view.Brief(h.MaxHold))
			state := h.release()
			if h.dir == "" {
				return state
			}
			lost, overdue = nil, nil
			h.tellLater(state)
		case <-ctx.Done():
			return h.release()
		case <-lost:
			lost = nil
			h.tellLoss()
		case by := <-h.Requests:
			h.Say("%s asks for %q: %s", view.Owner(by), h.name, view.Clean(by.Asks))
		case r := <-h.asked:
			if r.word == AskRelease {
				h.last = r
				return h.release()
			}
			r.reply(h.state())
		}
	}
}

// settle ends the wait: with the lock, or with what is told of it later.
func (h *Holder) settle(g Got) {
	if g.Failed == nil {
		h.Lock = g.Lock
	} else {
		state := h.first
		state.State, state.Place, state.Exit, state.Message = "ended", 0, g.Failed.Code, "the place in the queue was given up: "+g.Failed.Error()
		h.over = &state
	}
	h.wait = nil
	close(h.settled)
}

// tellLater has the holder say, when it is asked, that --max-hold has ended the hold. For those who
// relied on the lock since, it is a loss.
func (h *Holder) tellLater(state State) {
	if state.Exit == 0 {
		state.State, state.Exit = "lost", exit.CodeLost
		state.Message = fmt.Sprintf("%q was given back after %s, the longest allowed; others may have worked since", view.Clean(h.name), view.Brief(h.MaxHold))
	}
	h.over = &state
}

func (h *Holder) detail(format string, args ...any) {
	if h.Detail != nil { // else the lock is waited for
		h.Detail(format, args...)
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

// release gives the lock back, or the place, and says how that went. A lock that is granted while
// its place is given up is given back, too.
func (h *Holder) release() State {
	if h.wait != nil {
		h.wait.Leave()
		if h.settle(<-h.wait.Got); h.over != nil {
			state := h.first
			state.State, state.Place, state.Exit, state.Message = "released", 0, 0, ""
			return state
		}
	}
	if h.over != nil {
		return *h.over
	}
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

// read reads the question. How long it waits for the end of a wait stands behind the word, and then
// the format. Who asks in another one learns by the answer which ours is, and changes nothing.
func (r *request) read() (wait time.Duration, err error) {
	_ = r.conn.SetDeadline(time.Now().Add(askBound))
	line, err := bufio.NewReader(io.LimitReader(r.conn, 64)).ReadString('\n')
	if err != nil {
		return 0, err
	}
	parts := append(strings.Fields(line), "", "", "")
	if parts[2] != strconv.Itoa(socketFormat) {
		r.word = AskState
		return 0, nil
	}
	r.word = parts[0]
	wait, _ = time.ParseDuration(parts[1])
	return wait, nil
}

// pass hands the request to the holder, once its wait is over.
func (r *request) pass(h *Holder, wait time.Duration) {
	if wait > 0 {
		select {
		case <-h.settled:
		case <-time.After(wait):
		}
		_ = r.conn.SetDeadline(time.Now().Add(askBound))
	}
	h.asked <- r
}

// reply answers. A client that has gone needs no answer.
func (r *request) reply(s State) {
	_ = json.NewEncoder(r.conn).Encode(answer{socketFormat, s})
	r.conn.Close()
}

// privateSocket is in a directory that no other user can enter.
type privateSocket struct {
	net.Listener
	dir, path string
	shared    bool // with other holders for the same process
}

// listen puts the socket into the directory of its process, or into a separate one.
func (h *Holder) listen() (s *privateSocket, err error) {
	if h.dir == "" {
		return listenPrivately()
	}
	s = &privateSocket{dir: h.dir, path: filepath.Join(h.dir, strconv.Itoa(os.Getpid())), shared: true}
	_ = os.Remove(s.path) // of one that was killed, and had our number
	s.Listener, err = net.Listen("unix", s.path)
	return s, err
}

// parents are the directories for sockets. The path of one has at most about 100 bytes, and ':'
// separates paths in HASP_HOLD.
func parents() []string {
	return slices.DeleteFunc([]string{os.Getenv("XDG_RUNTIME_DIR"), os.TempDir(), "/tmp"}, func(dir string) bool {
		return dir == "" || dir[0] != '/' || len(dir) > 60 || strings.Contains(dir, ":")
	})
}

// listenPrivately puts the socket below the user's runtime directory, or a temporary one.
func listenPrivately() (*privateSocket, error) {
	var errs error
	for _, parent := range parents() {
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
	if !s.shared {
		_ = os.RemoveAll(s.dir)
	} else if d, err := enter(s.dir, unix.LOCK_NB); err == nil {
		d.leave()
	}
}

// serve passes on what clients ask, one after the other but for those that wait, until the socket
// is closed.
func (s *privateSocket) serve(h *Holder) {
	for {
		conn, err := s.Accept()
		if err != nil {
			return
		}
		r := &request{conn: conn}
		wait, err := r.read()
		switch {
		case err != nil:
			conn.Close()
		case wait > 0:
			go r.pass(h, wait)
		default:
			r.pass(h, 0)
		}
	}
}
