package cli

import (
	"slices"
	"strings"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// namesAndCommand splits NAME -- CMD ARGS, or the form without "--" where it cannot be misread.
// locks are the names that -l gives: then there is no NAME. With --any all words before "--" are
// names.
func (a *app) namesAndCommand(cmd *cobra.Command, args, locks []string, anyOf bool) (names, argv []string, err error) {
	if dash := cmd.ArgsLenAtDash(); anyOf && dash > 0 && dash < len(args) {
		names, argv = args[:dash], args[dash:]
	} else if anyOf {
		err = exit.Usage("--any needs NAMEs, -- and the command, as in hasp %s --any gpu0 gpu1 -- CMD", cmd.Name())
	} else {
		names, argv, err = a.split(cmd, args, locks)
	}
	if err != nil {
		return nil, nil, err
	}
	if argv[0] == "" {
		return nil, nil, exit.Usage("the command is empty: %s", cmd.UseLine())
	}
	return names, argv, checkNames(names)
}

func checkNames(names []string) error {
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			return exit.Usage("the lock %q is given twice", view.Clean(name))
		}
		if err := checkName(name); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) split(cmd *cobra.Command, args, locks []string) (names, argv []string, err error) {
	dash := cmd.ArgsLenAtDash()
	switch {
	case dash >= 0 && dash == len(args), dash < 0 && len(args) == 0, dash < 0 && len(args) == 1 && len(locks) == 0:
		return nil, nil, exit.Usage("no command to run: %s", cmd.UseLine())
	case len(locks) > 0 && dash < 0:
		return nil, nil, exit.Usage("put -- before the command: with -l all that stands behind it is the command, and %s would be read as a NAME without -l", view.Quote(args[0]))
	case len(locks) > 0 && dash > 0:
		return nil, nil, exit.Usage("give all names by -l, or one as NAME: %s is in front of -- without -l", view.Quote(args[0]))
	case len(locks) > 0:
		return locks, args, nil
	case dash == 0:
		return nil, nil, exit.Usage("no lock name before --: %s", cmd.UseLine())
	case dash > 1:
		return nil, nil, exit.Usage("more than the lock name before --; if it belongs to the command, put -- before that too: %s", cmd.UseLine())
	case dash < 0:
		if flag := a.flagBehindName(cmd); flag != "" {
			return nil, nil, ambiguous(cmd, flag)
		}
	}
	return args[:1], args[1:], nil
}

// ambiguous refuses a command line without "--" in which a flag stands behind the name: pflag takes
// it for hasp's, and its author may have meant it for the command.
func ambiguous(cmd *cobra.Command, flag string) error {
	return exit.Usage("put -- before the command: behind the name, %s could be for hasp or for the command: %s", view.Quote(flag), cmd.UseLine())
}

// flagBehindName is the first word that looks like a flag behind the first that does not; "" if
// there is none.
func (a *app) flagBehindName(cmd *cobra.Command) string {
	behind := a.behindFlags(cmd)
	if i := slices.IndexFunc(behind, looksLikeFlag); i >= 0 {
		return behind[i]
	}
	return ""
}

func looksLikeFlag(s string) bool { return len(s) > 1 && s[0] == '-' }

// behindFlags are the words of the verb's command line from the first one on that is neither a flag
// nor the value of one.
func (a *app) behindFlags(cmd *cobra.Command) []string {
	at := slices.Index(a.args, cmd.Name())
	if at < 0 {
		return nil
	}
	probe := pflag.NewFlagSet("", pflag.ContinueOnError)
	probe.AddFlagSet(cmd.Flags())
	probe.SetInterspersed(false)
	probe.Usage = func() {}
	// It sets no flag. An error comes again where the flags are set.
	_ = probe.ParseAll(a.args[at+1:], func(*pflag.Flag, string) error { return nil })
	return probe.Args()
}

// misplaced improves the message about a flag that hasp does not know: without "--", and behind a
// word that can be a command, it is the command's. NAME CMD -x is not refused for the flag.
func (a *app) misplaced(cmd *cobra.Command) error {
	behind := a.behindFlags(cmd)
	if !strings.Contains(cmd.Use, "NAME -- CMD") || len(behind) < 2 || looksLikeFlag(behind[1]) || slices.Contains(behind, "--") {
		return nil
	}
	return ambiguous(cmd, a.flagBehindName(cmd))
}
