package cli

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// exportFlags are those of hold --export and --background.
type exportFlags struct {
	export, background bool
	pid                int
	maxHold, maxWait   duration
	onLost             job.Reaction
	given              bool // --pid
}

func (f *exportFlags) add(fs *pflag.FlagSet) {
	f.maxHold.min, f.maxWait.min = 1, 1
	f.onLost = job.Reaction{Most: "stop", Text: "stop"}
	fs.BoolVar(&f.export, "export", false, "hold the lock in the background and print shell text that tells of it: eval \"$(hasp hold --export NAME)\"")
	fs.BoolVar(&f.background, "background", false, "take a place and return at once: 0 if the lock is held, 75 if it is waited for; both go on for --pid")
	fs.IntVar(&f.pid, "pid", 0, "with --export and --background: for as long as process `PID` lives (default of --export: the calling shell); 0: not bound to a process, for --max-hold")
	fs.Var(&f.maxHold, "max-hold", "with --export and --background: give the lock back when it is held for so long")
	fs.Var(&f.maxWait, "max-wait", "with --background: give the place up after so long (default: as long as it takes)")
	fs.Var(&f.onLost, "on-lost", "with --export: what the process gets when the lock is lost (default with --pid: ignore)")
}

// check looks at the arguments for flags that mean nothing without --export or --background, or with
// it: from the environment they may be for hasp run.
func (f *exportFlags) check(fs *pflag.FlagSet, args []string) error {
	f.given = fs.Lookup("pid").Changed
	among := func(flags ...string) bool {
		return slices.ContainsFunc(args, func(arg string) bool {
			name, _, _ := strings.Cut(arg, "=")
			return slices.Contains(flags, name)
		})
	}
	switch {
	case f.export && f.background:
		return exit.Usage("--export and --background exclude each other")
	case !f.export && !f.background && among("--pid", "--max-hold", "--on-lost"):
		return exit.Usage("--pid, --max-hold and --on-lost go with --export or --background")
	case !f.background && f.maxWait.set:
		return exit.Usage("--max-wait goes with --background; --wait bounds the wait otherwise")
	case f.background && among("--wait", "-w", "--no-wait", "-n"):
		return exit.Usage("--background returns at once: --max-wait bounds how long the place is kept, and hasp who --mine --wait waits")
	case f.pid < 0:
		return exit.Usage("--pid is a process's number, or 0")
	case f.background && f.pid == 0:
		return exit.Usage("--background needs --pid: the process that the lock is for, such as --pid $PPID in a shell that an agent has started")
	case f.given && f.pid == 0 && !f.maxHold.set:
		return exit.Usage("--pid 0 needs --max-hold: without a process or a time the lock would be held for ever")
	}
	if f.given && !fs.Lookup("on-lost").Changed {
		f.onLost = job.Reaction{Most: "stop", Text: "ignore"} // it may be the runner of all jobs
	}
	return nil
}

// shellVariables are those by which the calling shell knows of its locks.
func (a *app) shellVariables(s hold.State) map[string]string {
	own := a.lockVariables(s.All(), len(s.Locks) > 0, s.Deadline)
	text, _ := json.Marshal(alsoHeld(heldAbove(a.settings.Getenv), s.Store, s.All())) // plain data
	own[heldVariable], own[hold.Variable] = string(text), hold.Sockets(s.Socket, a.settings.Getenv(hold.Variable))
	return own
}

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
	holds := cmd.Name() == "hold" || slices.Contains(args, "hold")
	switch {
	case cmd.HasParent() && !holds:
		return false
	case refused && holds && (cmd.Name() == "hold" || !cmd.HasParent()):
		return true
	}
	return slices.ContainsFunc(args, func(arg string) bool {
		name, value, given := strings.Cut(arg, "=")
		on, err := strconv.ParseBool(value)
		return strings.HasPrefix(name, "--ex") && (!given || on || err != nil)
	})
}

// stateOf describes the locks while they are held, or were lost, and why.
func stateOf(l *commandLease, r *reporter, why func() error) hold.State {
	rec := r.describe("held", l)
	k := hold.State{State: rec.Event, Name: rec.Name, Store: rec.Store, Holder: rec.Holder, Token: rec.Token, Locks: rec.Locks, Deadline: rec.Deadline}
	if l.Err() != nil {
		k.State, k.Message, k.Exit = "lost", why().Error(), exit.CodeLost
	}
	return k
}
