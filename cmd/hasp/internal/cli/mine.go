package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The questions to a background holder.
const (
	wordState   = "state"
	wordRelease = "release"
)

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
	sockets := strings.FieldsFunc(a.getenv(holdVariable), func(r rune) bool { return r == ':' })
	if len(sockets) == 0 {
		return exit.Usage("%s is not set: this shell holds no lock; see: hasp hold --help", holdVariable)
	}
	type answer struct {
		socket string
		kept   kept
		err    error
	}
	var answers []answer
	found := map[string]bool{}
	for _, socket := range sockets {
		k, err := askKeeper(socket, wordState)
		named := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !k.has(name) })
		for _, name := range named {
			found[name] = true
		}
		switch {
		case err == nil && len(names) > 0 && len(named) == 0:
			continue
		case err == nil && word == wordRelease && len(names) > 0 && len(named) < len(k.all()):
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
	var worst *exit.Failure
	for _, h := range answers {
		if h.err == nil && word != wordState {
			h.kept, h.err = askKeeper(h.socket, word)
		}
		if f := a.tellMine(h.kept, h.err, asJSON); f != nil && worst == nil {
			worst = f
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}

// tellMine says what a background holder has answered. One that does not answer has died, and its
// lock with it, or has given it back before.
func (a *app) tellMine(k kept, err error, asJSON bool) *exit.Failure {
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

// askKeeper sends one question and returns the answer.
func askKeeper(socket, word string) (k kept, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return k, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerBound)); err != nil {
		return k, err
	}
	if _, err := conn.Write([]byte(word + "\n")); err != nil {
		return k, err
	}
	return k, json.NewDecoder(conn).Decode(&k)
}
