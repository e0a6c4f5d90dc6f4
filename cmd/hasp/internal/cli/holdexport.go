package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/job"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// exportFlags are those of hold --export.
type exportFlags struct {
	export  bool
	pid     int
	maxHold duration
	onLost  job.Reaction
	given   bool // --pid
}

func (f *exportFlags) add(fs *pflag.FlagSet) {
	f.maxHold.min = 1
	f.onLost = job.Reaction{Most: "stop", Text: "stop"}
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

// mineOf is a verb with --mine: it talks to the holders and not to a store.
func (a *app) mineOf(cmd *cobra.Command, args []string, word string, asJSON bool) error {
	given := ""
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "mine" && f.Name != "json" && slices.ContainsFunc(a.args, func(arg string) bool { return strings.HasPrefix(arg, "--"+f.Name) }) {
			given = f.Name
		}
	})
	if given != "" {
		return exit.Usage("--mine and --%s exclude each other", given)
	}
	slices.Sort(args)
	return a.mine(word, slices.Compact(args), asJSON)
}

// mine asks the background holders of this shell, the latest first: those of hold --export whose
// variables it has evaluated. All of them, or those of the names. Locks that were taken together
// are given back together, so they must be named together.
func (a *app) mine(word string, names []string, asJSON bool) error {
	sockets := strings.FieldsFunc(a.settings.Getenv(hold.Variable), func(r rune) bool { return r == ':' })
	if len(sockets) == 0 {
		return exit.Usage("%s is not set: this shell holds no lock; see: hasp hold --help", hold.Variable)
	}
	type answer struct {
		socket string
		state  hold.State
		err    error
	}
	var answers []answer
	found := map[string]bool{}
	for _, socket := range sockets {
		k, err := hold.Ask(socket, hold.AskState)
		named := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			return !slices.ContainsFunc(k.All(), func(l view.Lock) bool { return l.Name == name })
		})
		for _, name := range named {
			found[name] = true
		}
		switch {
		case err == nil && len(names) > 0 && len(named) == 0:
			continue
		case err == nil && word == hold.AskRelease && len(names) > 0 && len(named) < len(k.All()):
			return exit.Usage("%q are held together, and released together: name all of them", view.Clean(k.Name))
		}
		answers = append(answers, answer{socket, k, err})
	}
	// Which locks a holder had that is gone cannot be known: it counts if a name is not found
	// elsewhere.
	if len(names) > 0 && len(found) == len(names) {
		answers = slices.DeleteFunc(answers, func(a answer) bool { return a.err != nil })
	}
	for _, name := range names {
		if !found[name] && !slices.ContainsFunc(answers, func(a answer) bool { return a.err != nil }) {
			return exit.Usage("this shell holds no lock %q", view.Clean(name))
		}
	}
	var first error
	for _, h := range answers {
		if h.err == nil && word != hold.AskState {
			h.state, h.err = hold.Ask(h.socket, word)
		}
		first = cmp.Or(first, a.tellMine(h.state, h.err, asJSON))
	}
	return first
}

// tellMine says what a background holder has answered. One that does not answer has died, and its
// lock with it, or has given it back before.
func (a *app) tellMine(k hold.State, err error, asJSON bool) error {
	if err != nil {
		return &exit.Failure{Code: exit.CodeLost, Outcome: exit.OutcomeLost, Err: fmt.Errorf("the holder of this shell's lock is gone: the lock was released before, its time was over, or the holder was killed: %w", err)}
	}
	if asJSON {
		if err := a.printJSON(k); err != nil {
			return exit.Of(err)
		}
	}
	switch {
	case k.Exit != 0:
		return &exit.Failure{Code: k.Exit, Outcome: exit.OutcomeLost, Err: errors.New(k.Message), Told: asJSON}
	case asJSON:
	case k.State == "held" && len(k.Locks) > 1:
		a.tell(fmt.Sprintf("%q are held by this shell at %s", view.Clean(k.Name), view.Clean(k.Store)))
	case k.State == "held":
		a.tell(fmt.Sprintf("%q is held by this shell%s at %s", view.Clean(k.Name), view.CommaToken(k.Token), view.Clean(k.Store)))
	case k.Message != "":
		a.tell(k.Message)
	}
	return nil
}
