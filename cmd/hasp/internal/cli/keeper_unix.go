//go:build unix

package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/bound"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/signals"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"golang.org/x/sys/unix"
)

// keeper is a background holder: the process that has the lock of hold --export. It ends, and gives
// the lock back, with the process that it is bound to, at --max-hold, on a signal that asks to end,
// or when hasp release --mine asks for it. If it is killed, the store frees the lock as after any
// death.
//
// After a loss it stays, to say so when it is asked. It has one loop, and so one opinion on its
// state.
type keeper struct {
	app      *app
	flags    *runFlags
	export   *exportFlags
	bound    *bound.Process // nil: bound to a time only
	words    <-chan string
	answer   *os.File
	lease    *commandLease
	why      func() error // why the lock was lost
	report   *reporter
	asked    chan *request
	requests chan hasp.Owner // for the lock
}

// parseKeeper recognises the arguments of a background holder, and returns those of hasp hold.
func parseKeeper(args []string) (rest []string, k *keeper) {
	if len(args) < 3 || args[0] != keepVerb {
		return args, nil
	}
	pid, err := strconv.Atoi(args[1])
	pidfd, perr := strconv.ParseBool(args[2])
	if err != nil || perr != nil {
		return args, nil
	}
	k = &keeper{answer: os.NewFile(answerFD, "answer"), asked: make(chan *request), requests: asks()}
	words := make(chan string)
	go func() { // ends with the hasp that has started us
		defer close(words)
		for in := bufio.NewScanner(os.NewFile(wordsFD, "words")); in.Scan(); {
			words <- in.Text()
		}
	}()
	k.words = words
	if pid != 0 {
		k.bound = &bound.Process{PID: pid}
		if pidfd {
			k.bound.File = os.NewFile(boundFD, "pidfd")
		}
	}
	return args[3:], k
}

// keep acquires the locks and holds them.
func (k *keeper) keep(names []string) error {
	r, err := k.app.report(title(names), &k.flags.storeFlags, &k.flags.commandFlags)
	if err != nil {
		return err
	}
	k.report = r
	sigs := signals.Catch()
	defer sigs.Close()
	client, held, err := k.acquire(sigs, names)
	if err != nil {
		return r.done(record{}, exit.Of(err))
	}
	defer client.Close()
	held.numbered = len(k.flags.locks) > 0
	k.lease = held
	k.why = sync.OnceValue(func() error { return explainLoss(client, held, k.lease.Err()) })
	state, err := k.hold(sigs)
	if err != nil {
		return r.done(record{}, exit.Of(err))
	}
	return r.done(record{}, &exit.Failure{Code: state.Exit, Err: errors.New(state.Message), Told: true})
}

// acquire waits for the lock for as long as the hasp that has started us lives.
func (k *keeper) acquire(sigs *signals.Signals, names []string) (*hasp.Client, *commandLease, error) {
	ctx, stop := sigs.Until(context.Background())
	ctx, cancel := context.WithCancelCause(ctx)
	acquired := make(chan struct{})
	orphaned := make(chan bool, 1)
	go func() {
		select {
		case <-k.words: // too early for any word: the pipe has ended
			cancel(signals.Interrupted{Signal: syscall.SIGHUP})
			orphaned <- true
		case <-acquired:
			orphaned <- false
		}
	}()
	client, held, err := k.app.get(ctx, names, k.flags.holdNote(), k.flags, k.report, k.requests)
	close(acquired)
	in := stop()
	switch {
	case <-orphaned:
		in = &exit.Failure{Code: exit.CodeSignal + int(syscall.SIGHUP), Outcome: exit.OutcomeInterrupted, Err: signals.Interrupted{Signal: syscall.SIGHUP}, Told: true}
	case in == nil:
		return client, held, err
	}
	if err == nil {
		client.Close() // releases: no shell has been told of the lock
	}
	return nil, nil, in
}

// hold tells of the lock and keeps it. It returns the state in which it ends.
func (k *keeper) hold(sigs *signals.Signals) (kept, error) {
	socket, err := listenPrivately()
	if err != nil {
		return kept{}, exit.Misconfigured("no place for the socket of the background holder: %w", err)
	}
	defer socket.close()
	state := stateOf(k.lease, k.report.name, k.report.store)
	state.Socket = socket.path
	if err := json.NewEncoder(k.answer).Encode(state); err != nil || <-k.words != wordKeep {
		return k.release(), nil
	}
	k.answer.Close()
	if k.export.given { // the job may be over long before us, and its reader waits for the last writer
		if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
			_ = unix.Dup2(int(null.Fd()), 2)
		}
	}
	go socket.serve(k.asked)
	return k.loop(sigs), nil
}

func (k *keeper) loop(sigs *signals.Signals) kept {
	var unbound <-chan struct{}
	if k.bound != nil {
		unbound = k.bound.Ended()
	}
	var overdue <-chan time.Time
	if m := k.export.maxHold.d; m > 0 {
		overdue = time.After(time.Until(k.report.acquired.Add(m)))
	}
	ctx, stop := sigs.Until(context.Background())
	defer func() { _ = stop() }()
	lost := k.lease.Lost()
	for {
		select {
		case word, more := <-k.words:
			if word == wordDrop {
				return k.release()
			}
			if !more {
				k.words = nil
			}
		case <-unbound:
			k.report.detail("process %d has ended; releasing %q", k.bound.PID, k.report.name)
			return k.release()
		case <-overdue:
			k.report.say("%q is held for %s, the longest allowed; releasing it", k.report.name, view.Brief(k.export.maxHold.d))
			return k.release()
		case <-ctx.Done():
			return k.release()
		case <-lost:
			lost = nil
			k.tellLoss()
		case by := <-k.requests:
			k.report.say("%s asks for %q: %s", view.Owner(by), k.report.name, view.Clean(by.Asks))
		case r := <-k.asked:
			if r.word == wordRelease {
				state := k.release()
				r.reply(state)
				return state
			}
			r.reply(k.state())
		}
	}
}

// tellLoss tells people, and the process as --on-lost says. That process is a shell, perhaps in the
// middle of a command that does not get the signal: unlike hasp run, a background holder cannot end
// all of the work before the store may hand the lock on.
func (k *keeper) tellLoss() {
	p := &k.export.onLost
	sig := p.signal
	if p.ends() {
		sig = syscall.SIGTERM
	}
	if k.bound == nil || sig == 0 {
		k.report.say("%v", k.why())
		return
	}
	if err := k.bound.Signal(sig); err != nil { // before the store is asked
		k.report.say("%v; process %d could not be sent %s: %v", k.why(), k.bound.PID, signals.Name(sig), err)
		return
	}
	k.report.say("%v; process %d was sent %s", k.why(), k.bound.PID, signals.Name(sig))
}

// state describes the lock. Of a lost one the message says why; tellLoss has asked for that.
func (k *keeper) state() kept {
	s := stateOf(k.lease, k.report.name, k.report.store)
	if s.State == "lost" {
		s.Message = k.why().Error()
	}
	return s
}

// release gives the lock back and says how that went.
func (k *keeper) release() kept {
	ctx, cancel := context.WithTimeout(context.Background(), releaseBound)
	defer cancel()
	state := k.state()
	err := k.lease.Release(ctx)
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
func (r *request) reply(k kept) {
	_ = json.NewEncoder(r.conn).Encode(k)
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
		_ = conn.SetDeadline(time.Now().Add(answerBound))
		word, err := bufio.NewReader(io.LimitReader(conn, 64)).ReadString('\n')
		if err != nil {
			conn.Close()
			continue
		}
		asked <- &request{conn, word[:len(word)-1]}
	}
}
