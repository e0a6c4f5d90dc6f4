package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// exportFlags are those of hold --export.
type exportFlags struct {
	export  bool
	pid     int
	maxHold duration
	onLost  reaction
	given   bool // --pid
}

func (f *exportFlags) add(fs *pflag.FlagSet) {
	f.maxHold.min = 1
	f.onLost = reaction{most: "stop", text: "stop"}
	fs.BoolVar(&f.export, "export", false, "hold the lock in the background and print shell text that tells of it: eval \"$(hasp hold --export NAME)\"")
	fs.IntVar(&f.pid, "pid", 0, "with --export: hold the lock for as long as process `PID` lives (default: the calling shell); 0: not bound to a process, for --max-hold")
	fs.Var(&f.maxHold, "max-hold", "with --export: give the lock back when it is held for so long")
	fs.Var(&f.onLost, "on-lost", "with --export: what the process gets when the lock is lost (default with --pid: ignore)")
}

// check looks at the arguments for flags that mean nothing without --export: from the environment
// they may be for hasp run.
func (f *exportFlags) check(fs *pflag.FlagSet, args []string) error {
	f.given = fs.Lookup("pid").Changed
	stray := slices.ContainsFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return slices.Contains([]string{"--pid", "--max-hold", "--on-lost"}, name)
	})
	switch {
	case !f.export && stray:
		return exit.Usage("--pid, --max-hold and --on-lost go with --export")
	case f.pid < 0:
		return exit.Usage("--pid is a process's number, or 0")
	case f.given && f.pid == 0 && !f.maxHold.set:
		return exit.Usage("--pid 0 needs --max-hold: without a process or a time the lock would be held for ever")
	}
	if f.given && !fs.Lookup("on-lost").Changed {
		f.onLost = reaction{most: "stop", text: "ignore"} // it may be the runner of all jobs
	}
	return nil
}

// holdVariable has the sockets of the background holders, the latest first, with ':' in between.
const holdVariable = "HASP_HOLD"

// kept describes the lock of a background holder, to the hasp that has started the holder and to
// those that ask it later.
type kept struct {
	State    string     `json:"state"` // held, lost, released
	Name     string     `json:"name"`  // all names, as one text
	Store    string     `json:"store"`
	Holder   string     `json:"holder,omitempty"` // this and the token are those of a single lock
	Token    uint64     `json:"token,omitempty"`
	Locks    []oneOf    `json:"locks,omitempty"`    // those that -l has named
	Deadline *time.Time `json:"deadline,omitempty"` // absent where nothing expires
	Socket   string     `json:"socket,omitempty"`
	Message  string     `json:"message,omitempty"`
	Exit     int        `json:"exit"` // of the hasp that asks
}

// shellText is the text that the calling shell evaluates. Each statement ends with a semicolon:
// without quotes around it a text loses its lines. There is no HASP_STORE in it: the shell has its
// own, with credentials that do not belong into a text. With a shell it is for that process alone.
func (a *app) shellText(k kept, shell int) (string, error) {
	own := a.lockVariables(k.all(), len(k.Locks) > 0, k.Deadline)
	held := heldAbove(a.getenv)
	for _, l := range k.all() {
		held = append(held, holding{k.Store, l.Name, l.Holder, l.Token})
	}
	text, err := json.Marshal(held)
	if err != nil {
		return "", err // plain data
	}
	own[heldVariable] = string(text)
	own[holdVariable] = strings.Join(append([]string{k.Socket}, living(a.getenv(holdVariable))...), ":")
	var b strings.Builder
	if shell != 0 {
		fmt.Fprintf(&b, "if [ \"$$\" = %d ]; then\n", shell)
	}
	for _, name := range slices.Sorted(maps.Keys(own)) {
		if own[name] == "" {
			fmt.Fprintf(&b, "unset %s;\n", name)
			continue
		}
		fmt.Fprintf(&b, "%s=%s;\nexport %[1]s;\n", name, shellQuote(own[name]))
	}
	if shell != 0 {
		b.WriteString("else\n")
		otherShell(&b, k, shell)
		b.WriteString("fi;\n")
	}
	return b.String(), nil
}

// otherShell is the text for a shell that is not the process which the lock is bound to.
// bound.ToCaller has taken that for the shell, and there are two cases in which it is not. A wrapper
// that waits for hasp (timeout, a script) has executed something, as a shell has, and the lock ends
// with it, a moment later. And a script without "#!" is run by bash in a fork, which looks like a
// subshell: the lock would outlast the script, up to the end of that bash. The shell itself knows
// better: its $$ is the main shell also in a subshell.
//
// So the lock is given back, where it is still held, and the script ends as without a lock. The
// holder is asked by its socket: its process number may be another process's when a text is
// evaluated late.
func otherShell(w io.Writer, k kept, bound int) {
	text := fmt.Sprintf("hasp: %q was taken for process %d, which is not this shell: hasp was started by a wrapper such as timeout, or this script has no #! line; "+
		"name the shell: hasp hold --export --pid $$", view.Clean(k.Name), bound)
	_, _ = fmt.Fprintf(w, "%s=%s %s release --mine >/dev/null 2>&1 || :;\nprintf '%%s\\n' %s >&2;\n",
		holdVariable, shellQuote(k.Socket), shellQuote(os.Args[0]), shellQuote(text)) // into memory
	noLock(w, exit.CodeConfig)
}

// all are the locks, however they were named.
func (k kept) all() []oneOf {
	if len(k.Locks) > 0 {
		return k.Locks
	}
	return []oneOf{{k.Name, k.Token, k.Holder}}
}

func (k kept) has(name string) bool {
	return slices.ContainsFunc(k.all(), func(l oneOf) bool { return l.Name == name })
}

// living are the sockets that are still there: a holder removes its own when it gives its lock
// back.
func living(sockets string) []string {
	return slices.DeleteFunc(strings.Split(sockets, ":"), func(s string) bool {
		_, err := os.Lstat(s)
		return s == "" || err != nil
	})
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// exporting recognises hold --export on a command line that has failed: a script that evaluates
// what is printed must not run on. In doubt it is recognised. Where the command line is refused,
// the verb or the flag may be mistyped, or another verb than was meant: an unknown flag takes the
// next word for its value. So hold that is refused for its command line counts in any case, as
// no lock was told of. But nothing behind "--" counts: there is the command of another verb,
// whose output is not to be touched.
func exporting(cmd *cobra.Command, args []string, refused bool) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	hold := cmd.Name() == "hold" || slices.Contains(args, "hold")
	switch {
	case cmd.HasParent() && !hold:
		return false
	case refused && hold && (cmd.Name() == "hold" || !cmd.HasParent()):
		return true
	}
	return slices.ContainsFunc(args, func(arg string) bool {
		name, value, given := strings.Cut(arg, "=")
		on, err := strconv.ParseBool(value)
		return strings.HasPrefix(name, "--ex") && (!given || on || err != nil)
	})
}

// noLock is the text for the calling shell when there is no lock. With eval "$(hasp ...)" a shell
// does not see the exit code, and a script without set -e would run on without its lock: so the
// text ends a script with that code. A person's shell must stay, and only gets the code as a
// status.
func noLock(w io.Writer, code int) {
	_, _ = fmt.Fprintf(w, "case $- in *i*) (exit %d) ;; *) exit %[1]d ;; esac;\n", code) // the exit code says it, too
}

// stateOf describes the locks while they are held, or were lost.
func stateOf(l *commandLease, name, store string) kept {
	k := kept{State: "held", Name: name, Store: store, Deadline: expiry(l)}
	if only := l.only(); only != nil {
		k.Holder, k.Token = only.ID(), only.Token()
	}
	if l.numbered {
		k.Locks = l.locks()
	}
	if err := l.Err(); err != nil {
		k.State, k.Message, k.Exit = "lost", err.Error(), exit.CodeLost
	}
	return k
}
