package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpCommand is hasp help. cobra's own ends with 0 after a word that is no command.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "show the help of a command",
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
