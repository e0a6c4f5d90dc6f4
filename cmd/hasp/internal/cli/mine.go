package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// mineFlags are those of a verb that can ask for what hasp hold holds in the background.
type mineFlags struct {
	mine bool
	pid  int
}

func (f *mineFlags) add(fs *pflag.FlagSet, usage string) {
	fs.BoolVar(&f.mine, "mine", false, usage)
	fs.IntVar(&f.pid, "pid", 0, "with --mine: what hasp hold --background has for process `PID` (default: what --export has for this shell, or else for the nearest process above)")
}

// holders are the background holders that --mine means.
type holders struct {
	whose   string
	sockets []string

	background bool // those of hold --background
}

// mineOf is a verb with --mine: it talks to the holders and not to a store.
func (a *app) mineOf(cmd *cobra.Command, args []string, word string, f *mineFlags, asJSON bool, wait time.Duration) error {
	given := ""
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if !slices.Contains([]string{"mine", "json", "pid"}, f.Name) && (f.Name != "wait" || word != hold.AskState) &&
			slices.ContainsFunc(a.args, func(arg string) bool { return strings.HasPrefix(arg, "--"+f.Name) }) {
			given = f.Name
		}
	})
	switch {
	case given != "":
		return exit.Usage("--mine and --%s exclude each other", given)
	case f.pid < 0:
		return exit.Usage("--pid is a process's number")
	}
	slices.Sort(args)
	return a.mine(a.holders(f.pid), word, slices.Compact(args), asJSON, wait)
}

// holders finds those of hold --export whose variables this shell has evaluated, the latest first. A
// shell without any, or that names a process, means those of hold --background.
func (a *app) holders(pid int) holders {
	sockets := strings.FieldsFunc(a.settings.Getenv(hold.Variable), func(r rune) bool { return r == ':' })
	if pid == 0 && len(sockets) > 0 {
		return holders{whose: "this shell", sockets: sockets}
	}
	pid, sockets = hold.Places(pid)
	return holders{fmt.Sprintf("process %d", pid), sockets, true}
}

// mine asks background holders: all of them, or those of the names. Locks that were taken together
// are given back together, so they must be named together.
func (a *app) mine(of holders, word string, names []string, asJSON bool, wait time.Duration) error {
	if len(of.sockets) == 0 {
		return notMine("nothing is held or waited for: %s is not set (hasp hold --export), and hasp hold --background has nothing for %s",
			hold.Variable, strings.Replace(of.whose, "process 0", "a process above", 1))
	}
	type answer struct {
		socket string
		state  hold.State
		err    error
	}
	var answers []answer
	found := map[string]bool{}
	for _, socket := range of.sockets {
		k, err := hold.Find(socket)
		if of.background && errors.Is(err, fs.ErrNotExist) {
			continue // it has ended since its socket was seen: what it had was given back before
		}
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
	if len(answers) == 0 && len(names) == 0 {
		return notMine("nothing is held or waited for: the last holder of %s has just ended", of.whose)
	}
	// Which locks a holder had that is gone cannot be known: it counts if a name is not found
	// elsewhere.
	if len(names) > 0 && len(found) == len(names) {
		answers = slices.DeleteFunc(answers, func(a answer) bool { return a.err != nil })
	}
	for _, name := range names {
		if !found[name] && !slices.ContainsFunc(answers, func(a answer) bool { return a.err != nil }) {
			return notMine("%s holds no lock %q, and waits for none of that name", of.whose, view.Clean(name))
		}
	}
	var first error
	until := time.Now().Add(wait)
	for _, h := range answers {
		if h.err == nil && (word != hold.AskState || h.state.State == "waiting" && wait > 0) {
			h.state, h.err = hold.Ask(h.socket, word, max(0, time.Until(until)))
		}
		first = cmp.Or(first, a.tellMine(of.whose, h.state, h.err, asJSON))
	}
	return first
}

// notMine is the answer for a lock that is not held: it may have been.
func notMine(format string, args ...any) error {
	return &exit.Failure{Code: exit.CodeLost, Outcome: exit.OutcomeLost, Err: fmt.Errorf(format, args...)}
}

// tellMine says what a background holder has answered. One that does not answer has died, and its
// lock with it, or has given it back before.
func (a *app) tellMine(whose string, k hold.State, err error, asJSON bool) error {
	var silent *exit.Failure
	if errors.Is(err, hasp.ErrInvalid) || errors.As(err, &silent) { // of another version, or stopped
		return exit.Of(err)
	}
	if err != nil {
		return notMine("the holder of %s's lock is gone: the lock was released before, its time was over, or the holder was killed: %w", whose, err)
	}
	if asJSON {
		if err := a.printJSON(k); err != nil {
			return exit.Of(err)
		}
	}
	switch {
	case k.Exit != 0:
		outcome := exit.OutcomeLost
		if k.State == "waiting" {
			outcome = exit.OutcomeBusy
		}
		return &exit.Failure{Code: k.Exit, Outcome: outcome, Err: errors.New(k.Message), Told: asJSON}
	case asJSON:
	case k.State == "held" && len(k.Locks) > 1:
		a.tell(fmt.Sprintf("%q are held by %s at %s", view.Clean(k.Name), whose, view.Clean(k.Store)))
	case k.State == "held":
		a.tell(fmt.Sprintf("%q is held by %s%s at %s", view.Clean(k.Name), whose, view.CommaToken(k.Token), view.Clean(k.Store)))
	case k.Message != "":
		a.tell(k.Message)
	}
	return nil
}
