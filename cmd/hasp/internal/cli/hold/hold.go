// Package hold has the background holder of hasp hold: a process that holds a lock for a shell,
// from one step of a script to another (--export), or waits for one and holds it for any process
// (--background). [Start] and [Background] are the side of the hasp that the user has started,
// [Holder] that of the process which this starts, and [Ask] that of a later hasp. What the shell
// evaluates is [Text].
//
// The package knows no store and takes no lock: the holder is handed one, as a [Lock].
package hold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
)

// Variable has the sockets of the background holders, the latest first, with ':' in between.
const Variable = "HASP_HOLD"

// Caller, in place of a process's number, is the shell that has started hasp.
const Caller = -1

// State describes the lock of a background holder, to the hasp that has started the holder and to
// those that ask it later.
type State struct {
	State    string      `json:"state"` // held, lost, released; waiting, ended without a lock
	Name     string      `json:"name"`  // all names, as one text
	Store    string      `json:"store"`
	Holder   string      `json:"holder,omitempty"` // this and the token are those of a single lock
	Token    uint64      `json:"token,omitempty"`
	Locks    []view.Lock `json:"locks,omitempty"`    // those that -l has named
	Deadline *time.Time  `json:"deadline,omitempty"` // absent where nothing expires
	Socket   string      `json:"socket,omitempty"`
	Message  string      `json:"message,omitempty"`
	Exit     int         `json:"exit"` // of the hasp that asks

	// Of hold --background.
	PID   int    `json:"pid,omitempty"`   // of the process that it is for
	Place int    `json:"place,omitempty"` // among those who wait; 1 is the next
	URL   string `json:"url,omitempty"`   // of the store, without credentials, as it was named
	Kind  string `json:"kind,omitempty"`  // of the lock, if it is not for one alone
}

// SameAs reports whether both ask for the same.
func (s State) SameAs(o State) bool {
	return s.URL == o.URL && s.Kind == o.Kind && slices.Equal(s.names(), o.names())
}

// Meets reports whether both are about the same lock.
func (s State) Meets(o State) bool {
	return s.URL == o.URL && slices.ContainsFunc(s.names(), func(name string) bool { return slices.Contains(o.names(), name) })
}

func (s State) names() (names []string) {
	for _, l := range s.All() {
		names = append(names, l.Name)
	}
	slices.Sort(names)
	return names
}

// All are the locks, however they were named.
func (s State) All() []view.Lock {
	if len(s.Locks) > 0 {
		return s.Locks
	}
	return []view.Lock{{Name: s.Name, Token: s.Token, Holder: s.Holder}}
}

// Sockets is the value of [Variable] with another holder in front of those that are still there: a
// holder removes its socket when it gives its lock back.
func Sockets(latest, others string) string {
	return strings.Join(append([]string{latest}, slices.DeleteFunc(strings.Split(others, ":"), func(s string) bool {
		_, err := os.Lstat(s)
		return s == "" || err != nil
	})...), ":")
}

// The questions to a background holder.
const (
	AskState   = "state"
	AskRelease = "release"
)

// socketFormat is the version of questions and answers: in each line of both, so that neither side
// acts on what it may misread.
const socketFormat = 1

// answer is a line of JSON.
type answer struct {
	Format int `json:"format"`
	State
}

// askBound is how long a question and its answer may take, and lookBound that of Look.
const (
	askBound  = 10 * time.Second
	lookBound = time.Second
)

// Look asks the holder at a socket for its state. One that does not answer at once, as if it is
// stopped, must not keep up those who only ask in passing.
func Look(socket string) (State, error) { return askWithin(socket, AskState, 0, lookBound) }

// Ask sends one question to the holder at a socket, and returns the answer: while its lock is
// waited for, after the wait. A holder of another version of hasp is an error that wraps
// driver.ErrInvalid: it has done nothing. One that does not answer is an [exit.Failure]: it may
// still have its lock.
func Ask(socket, question string, wait time.Duration) (State, error) {
	return askWithin(socket, question, wait, wait+askBound)
}

// Find asks the holder at a socket for its state. One that ends meanwhile does not answer: it is
// asked again, until its socket is gone (fs.ErrNotExist), or refuses if it was killed.
func Find(socket string) (s State, err error) {
	for deadline := time.Now().Add(askBound); ; time.Sleep(10 * time.Millisecond) {
		s, err = Ask(socket, AskState, 0)
		ended := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if !ended || time.Now().After(deadline) {
			return s, err
		}
	}
}

func askWithin(socket, question string, wait, bound time.Duration) (s State, err error) {
	defer func() {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = &exit.Failure{Code: exit.CodeUnreachable, Outcome: exit.OutcomeUnreachable, Err: fmt.Errorf("the background holder at %s does not answer, as if it was stopped; it may hold its lock still", socket)}
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return s, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(bound)); err != nil {
		return s, err
	}
	if _, err := fmt.Fprintln(conn, question, wait, socketFormat); err != nil {
		return s, err
	}
	var a answer
	err = json.NewDecoder(conn).Decode(&a)
	if err == nil && a.Format != socketFormat {
		err = driver.OtherFormat("the background holder at "+socket, a.Format, socketFormat, "its socket")
	}
	return a.State, err
}

// Text is the text that the calling shell evaluates: it sets the variables, and removes those
// without a value. Each statement ends with a semicolon: without quotes around it a text loses its
// lines. There is no HASP_STORE in it: the shell has its own, with credentials that do not belong
// into a text. With a shell it is for that process alone.
func Text(variables map[string]string, s State, shell int) string {
	var b strings.Builder
	if shell != 0 {
		fmt.Fprintf(&b, "if [ \"$$\" = %d ]; then\n", shell)
	}
	for _, name := range slices.Sorted(maps.Keys(variables)) {
		if variables[name] == "" {
			fmt.Fprintf(&b, "unset %s;\n", name)
			continue
		}
		fmt.Fprintf(&b, "%s=%s;\nexport %[1]s;\n", name, quote(variables[name]))
	}
	if shell != 0 {
		b.WriteString("else\n")
		otherShell(&b, s, shell)
		b.WriteString("fi;\n")
	}
	return b.String()
}

// otherShell is the text for a shell that is not the process which the lock is bound to.
// bound.ToCaller has taken that for the shell, and there are two cases in which it is not. A
// wrapper that waits for hasp (timeout, a script) has executed something, as a shell has, and the
// lock ends with it, a moment later. And a script without "#!" is run by bash in a fork, which
// looks like a subshell: the lock would outlast the script, up to the end of that bash. The shell
// itself knows better: its $$ is the main shell also in a subshell.
//
// So the lock is given back, where it is still held, and the script ends as without a lock. The
// holder is asked by its socket: its process number may be another process's when a text is
// evaluated late.
func otherShell(w io.Writer, s State, bound int) {
	text := fmt.Sprintf("hasp: %q was taken for process %d, which is not this shell: hasp was started by a wrapper such as timeout, or this script has no #! line; "+
		"name the shell: hasp hold --export --pid $$", view.Clean(s.Name), bound)
	_, _ = fmt.Fprintf(w, "%s=%s %s release --mine >/dev/null 2>&1 || :;\nprintf '%%s\\n' %s >&2;\n",
		Variable, quote(s.Socket), quote(os.Args[0]), quote(text)) // into memory
	NoLock(w, exit.CodeConfig)
}

// NoLock is the text for the calling shell when there is no lock. With eval "$(hasp ...)" a shell
// does not see the exit code, and a script without set -e would run on without its lock: so the
// text ends a script with that code. A person's shell must stay, and only gets the code as a
// status.
func NoLock(w io.Writer, code int) {
	_, _ = fmt.Fprintf(w, "case $- in *i*) (exit %d) ;; *) exit %[1]d ;; esac;\n", code) // the exit code says it, too
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
