package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpCommand is hasp help. cobra's own ends with 0 after a word that is no command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND | TOPIC]",
		Short: "show the help of a command, or of a topic",
		Args:  cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(root, args)
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

// Annotations of a command: the flags that its help shows first, and the command whose help has the
// others.
const (
	mostNeeded = "most needed"
	othersIn   = "others in"
)

// usage prints what stands behind the description in a command's help. cobra's own has one list of
// flags, by the alphabet.
func usage(c *cobra.Command) error {
	var b strings.Builder
	part := func(heading, text string) {
		if text != "" {
			fmt.Fprintf(&b, "\n%s:\n%s\n", heading, strings.TrimRight(text, "\n"))
		}
	}
	var verbs, topics string
	for _, sub := range c.Commands() {
		line := fmt.Sprintf("  %-12s %s\n", sub.Name(), sub.Short)
		if sub.IsAvailableCommand() || sub.Name() == "help" {
			verbs += line
		} else if sub.IsAdditionalHelpTopicCommand() {
			topics += line
		}
	}
	first, more := pflag.NewFlagSet("", pflag.ContinueOnError), pflag.NewFlagSet("", pflag.ContinueOnError)
	first.SortFlags = false
	names := strings.Fields(c.Annotations[mostNeeded])
	for _, name := range names {
		first.AddFlag(c.Flags().Lookup(name))
	}
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if len(names) == 0 {
			first.AddFlag(f)
		} else if first.Lookup(f.Name) == nil {
			more.AddFlag(f)
		}
	})
	line := c.UseLine()
	if !c.HasParent() {
		line = c.Name() + " COMMAND [flags]"
	}
	fmt.Fprintf(&b, "Usage:\n  %s\n", line)
	part("Examples", c.Example)
	part("Available Commands", verbs)
	part("Help topics", topics)
	part("Flags", first.FlagUsages())
	if other := c.Annotations[othersIn]; other != "" {
		text := "  as described by " + other + " --help:"
		more.VisitAll(func(f *pflag.Flag) { text += " --" + f.Name })
		part("More options", text)
	} else {
		part("More options", more.FlagUsages())
	}
	if topics != "" {
		b.WriteString("\nUse \"hasp help COMMAND\" or \"hasp help TOPIC\" for more about one.\n")
	}
	_, err := c.OutOrStderr().Write([]byte(b.String()))
	return err
}

func init() { cobra.EnableCommandSorting = false } // what is needed most comes first

// refuseUnknown has the commands that only have subcommands (completion, fence) refuse a word that
// is none of them. cobra shows their help instead, and the exit code is 0.
func refuseUnknown(parent *cobra.Command) {
	for _, c := range parent.Commands() {
		refuseUnknown(c)
		if c.Runnable() || !c.HasSubCommands() {
			continue
		}
		c.Args = cobra.ArbitraryArgs
		c.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args)
			}
			return cmd.Help()
		}
	}
}

func unknownCommand(parent *cobra.Command, args []string) error {
	return exit.Usage("unknown command %s%s; see: %s --help", view.Quote(strings.Join(args, " ")), suggestion(parent, args[0]), parent.CommandPath())
}

// helpWriter is where cobra writes help: it does not look at what Write returns.
type helpWriter struct {
	io.Writer
	failed error // the first
}

func (w *helpWriter) Write(b []byte) (int, error) {
	n, err := w.Writer.Write(b)
	if err != nil && w.failed == nil {
		w.failed = err
	}
	return n, err
}

// describeFlagError says what is wrong with a flag, in one line. pflag's own messages
// quote what they were given, and that may be a store's URL with its password.
func describeFlagError(err error) string {
	var (
		unknown *pflag.NotExistError
		invalid *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
		syntax  *pflag.InvalidSyntaxError
	)
	switch {
	case errors.As(err, &unknown):
		if short := unknown.GetSpecifiedShortnames(); short != "" {
			letters, _, _ := strings.Cut(short, "=")
			return fmt.Sprintf("unknown flag %q in -%s (long flags take two dashes)", "-"+unknown.GetSpecifiedName(), view.Quietly(letters))
		}
		return "unknown flag --" + view.Quietly(unknown.GetSpecifiedName())
	case errors.As(err, &invalid):
		return fmt.Sprintf("--%s: %s: %v", invalid.GetFlag().Name, view.Quote(invalid.GetValue()), invalid.Unwrap())
	case errors.As(err, &missing):
		return fmt.Sprintf("--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &syntax):
		return "bad flag " + view.Quote(syntax.GetSpecifiedFlag())
	}
	return view.Quietly(err.Error())
}
