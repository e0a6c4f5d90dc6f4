package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/storeurl"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completionMost is how many names a completion offers.
const completionMost = 200

// completionBound is how long a completion asks the store: a person waits at the shell. The tests
// are more patient.
var completionBound = 250 * time.Millisecond

// completions tells the shell what can follow. What is asked of the store is for reading alone; if
// there is no answer, there is nothing to offer, and no message: the shell shows that in the middle
// of a line.
func (a *app) completions(root *cobra.Command) {
	for _, c := range root.Commands() {
		if strings.Contains(c.Use, "NAME") || strings.Contains(c.Use, "[PREFIX]") {
			c.ValidArgsFunction = a.completeName
		} else if !c.HasSubCommands() && c.ValidArgsFunction == nil {
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
		a.completeFlags(c)
	}
}

// completeFlags offers names for the flags that take one, and files for those that take a file.
func (a *app) completeFlags(c *cobra.Command) {
	c.Flags().VisitAll(func(f *pflag.Flag) {
		complete := cobra.NoFileCompletions
		if f.Name == "lock" || f.Name == "name" {
			complete = a.completeFlagName
		}
		if word, _ := pflag.UnquoteUsage(f); f.Value.Type() != "bool" && word != "FILE" {
			_ = c.RegisterFlagCompletionFunc(f.Name, complete) // it fails for a flag that does not exist, or has one
		}
	})
}

// completeName offers names in the place of an argument. Behind the name comes a command, which the
// shell completes.
func (a *app) completeName(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return a.completeFlagName(cmd, args, begun)
}

// completeFlagName offers the names that are held or waited for.
func (a *app) completeFlagName(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return a.lookUp(cmd, func(ctx context.Context, c *hasp.Client) (names []string) {
		for name, err := range c.Names(ctx, begun) {
			if err != nil || len(names) == completionMost {
				break
			}
			if plain(name) {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}), cobra.ShellCompDirectiveNoFileComp
}

// plain reports whether a name is a word in every shell. Others, which need quotes, are not
// offered.
func plain(name string) bool {
	for _, r := range name {
		if r <= ' ' || r == 0x7f || strings.ContainsRune("\"'`$\\;&|<>(){}[]*?!#~=", r) {
			return false
		}
	}
	return name != "" && name[0] != '-'
}

// lookUp opens the store of the line that is completed and asks it. It returns when the time is
// over, also if the store does not end with its context: the process ends then.
func (a *app) lookUp(cmd *cobra.Command, ask func(context.Context, *hasp.Client) []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), completionBound)
	defer cancel()
	f := cmd.Flags().Lookup("store")
	if f == nil || a.settings.Apply(cmd.Flags()) != nil {
		return nil
	}
	store, ok := f.Value.(*storeurl.URL).LookOnly()
	if !ok {
		return nil
	}
	answer := make(chan []string, 1)
	go func() {
		var words []string
		if c, err := a.connect(ctx, store); err == nil {
			words = ask(ctx, c)
		}
		answer <- words
	}()
	select {
	case words := <-answer:
		return words
	case <-time.After(completionBound + completionBound/10): // what has come until then is still taken
		return nil
	}
}
