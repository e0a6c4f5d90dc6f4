package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/spf13/pflag"
)

// exportFlags are those of hold --export.
type exportFlags struct {
	export  bool
	pid     int
	maxHold span
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

// check looks at the arguments for flags that mean nothing without --export: from the environment they
// may be for hasp run.
func (f *exportFlags) check(fs *pflag.FlagSet, args []string) error {
	f.given = fs.Lookup("pid").Changed
	stray := slices.ContainsFunc(args, func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return slices.Contains([]string{"--pid", "--max-hold", "--on-lost"}, name)
	})
	switch {
	case !f.export && stray:
		return usage("--pid, --max-hold and --on-lost go with --export")
	case f.pid < 0:
		return usage("--pid is a process's number, or 0")
	case f.given && f.pid == 0 && !f.maxHold.set:
		return usage("--pid 0 needs --max-hold: without a process or a time the lock would be held for ever")
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
	Name     string     `json:"name"`
	Store    string     `json:"store"`
	Holder   string     `json:"holder"`
	Token    uint64     `json:"token,omitempty"`
	Deadline *time.Time `json:"deadline,omitempty"` // absent where nothing expires
	Socket   string     `json:"socket,omitempty"`
	Message  string     `json:"message,omitempty"`
	Exit     int        `json:"exit"` // of the hasp that asks
}

// shellText is the text that the calling shell evaluates. There is no HASP_STORE in it: the shell has its own,
// with credentials that do not belong into a text.
func (a *app) shellText(k kept) (string, error) {
	held, err := json.Marshal(append(heldAbove(a.getenv), holding{k.Store, k.Name, k.Holder}))
	if err != nil {
		return "", err // plain data
	}
	values := [][2]string{
		{"HASP_NAME", k.Name}, {"HASP_HOLDER", k.Holder}, {heldVariable, string(held)},
		{holdVariable, strings.Join(append([]string{k.Socket}, living(a.getenv(holdVariable))...), ":")},
	}
	unset := ""
	if k.Token != 0 {
		values = append(values, [2]string{"HASP_TOKEN", strconv.FormatUint(k.Token, 10)})
	} else {
		unset += "unset HASP_TOKEN\n" // of an outer lock
	}
	if k.Deadline != nil {
		values = append(values, [2]string{"HASP_DEADLINE", k.Deadline.Format(time.RFC3339Nano)})
	} else {
		unset += "unset HASP_DEADLINE\n"
	}
	var b strings.Builder
	for _, v := range values {
		fmt.Fprintf(&b, "%s=%s\nexport %s\n", v[0], shellQuote(v[1]), v[0])
	}
	return b.String() + unset, nil
}

// living are the sockets that are still there: a holder removes its own when it gives its lock back.
func living(sockets string) []string {
	return slices.DeleteFunc(strings.Split(sockets, ":"), func(s string) bool {
		_, err := os.Lstat(s)
		return s == "" || err != nil
	})
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// exporting recognises hold --export on a command line, also on one that is refused.
func exporting(args []string) bool {
	return len(args) > 0 && args[0] == "hold" && slices.Contains(args, "--export") && !slices.Contains(args, "--help") && !slices.Contains(args, "-h")
}

// noLock is the text for the calling shell when there is no lock. With eval "$(hasp ...)" a shell does
// not see the exit code, and a script without set -e would run on without its lock: so the text
// ends a script with that code. A person's shell must stay, and only gets the code as a status.
func noLock(w io.Writer, code int) {
	_, _ = fmt.Fprintf(w, "case $- in *i*) (exit %d) ;; *) exit %[1]d ;; esac\n", code) // the exit code says it, too
}

// stateOf describes a lock while it is held, or was lost.
func stateOf(l *hasp.Lease, store string) kept {
	k := kept{State: "held", Name: l.Name(), Store: store, Holder: l.ID(), Token: l.Token()}
	if d := l.Deadline(); !d.IsZero() {
		k.Deadline = &d
	}
	if err := l.Err(); err != nil {
		k.State, k.Message, k.Exit = "lost", err.Error(), exitLost
	}
	return k
}
