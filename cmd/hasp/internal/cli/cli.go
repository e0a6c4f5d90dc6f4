// Package cli is the `hasp` command. cmd/hasp only calls Main.
//
// Standard output is for data, or for the command that runs under the lock; hasp's messages go to
// standard error. Every way to exit has a documented exit code (package exit). Everything that can be
// refused without asking a store is refused before a store is asked.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/group"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/output"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/secrets"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// app is one run of the command.
type app struct {
	streams
	settings settings.Settings
	connect  func(ctx context.Context, url string, opts ...hasp.Option) (*hasp.Client, error)
	args     []string         // as given
	holder   *hold.Holder     // of a background holder
	above    func() []holding // askAbove, once: what is held for those who wait for this hasp does not change
}

// streams are the descriptors of the process, and what is printed to them.
type streams struct {
	stdin          *os.File
	stdout, stderr io.Writer
	outputs        []*output.Writer // stderr's is the first
	tty            bool             // stderr is a terminal: a person watches
	openStatus     func(fd int) (io.WriteCloser, error)
	help           helpWriter
}

// Main runs the command with this process's arguments and returns its exit code.
func Main() int {
	args, holder := hold.Inherit(secrets.TakeArgs())
	a := &app{
		streams: streams{
			stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, tty: group.IsTerminal(os.Stderr), openStatus: output.Inherited,
		},
		settings: settings.Settings{Getenv: os.Getenv, Environ: os.Environ, Paths: settings.Paths},
		connect:  hasp.Open, holder: holder,
	}
	return a.run(args)
}

func (a *app) run(args []string) int {
	a.args, a.above = args, sync.OnceValue(a.askAbove)
	a.stderr = a.output(a.stderr, output.GapInWords)
	defer func() { output.FlushAll(a.outputs) }()
	root := a.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	if err == nil && a.help.failed != nil {
		err = notPrinted(a.help.failed)
	}
	if err == nil {
		return exit.CodeOK
	}
	var f *exit.Failure
	refused := !errors.As(err, &f) || f.Code == exit.CodeUsage && !errors.Is(err, errInput) // before anything was done
	code := a.explain(err)
	if code != exit.CodeOK && a.holder == nil && exporting(cmd, args, refused) {
		hold.NoLock(a.stdout, code)
	}
	return code
}

// output makes the writer to one of the user's descriptors, once for each.
func (s *streams) output(w io.Writer, gap func(lines int) string) *output.Writer {
	o := output.New(w, gap)
	s.outputs = append(s.outputs, o)
	return o
}

// explain says why hasp fails, and returns the exit code.
func (a *app) explain(err error) int {
	var f *exit.Failure
	if !errors.As(err, &f) {
		// hasp's functions return only failures. Any other error comes from cobra, which has
		// refused the arguments.
		f = exit.Usage("%s", describeFlagError(err))
	}
	if !f.Told {
		a.tell(f.Error())
	}
	return f.Code
}

// tell prints one line to standard error.
func (s *streams) tell(text string) {
	output.SurviveClosedPipes()
	_, _ = io.WriteString(s.stderr, "hasp: "+view.OneLine(strings.TrimPrefix(text, "hasp: "))+"\n") // if that fails, there is nowhere to report it
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:     "hasp",
		Short:   "run a command under a lock that holds between processes and machines",
		Version: thisVersion().String(),
		Long: `hasp runs a command under a lock, so that only one runs at a time: on this machine
with no set-up at all, among machines through the store you already have.`,
		Example:           `  hasp run nightly-report -- ./report.sh`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return exit.Usage("unknown command %s%s; see: hasp --help", view.Quote(args[0]), suggestion(cmd, args[0]))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	a.help.Writer = a.stdout
	root.SetOut(&a.help) // before the completions take it
	root.SetErr(a.stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if mine := a.misplaced(cmd); mine != nil {
			return mine
		}
		return exit.Usage("%s; see: %s --help", describeFlagError(err), cmd.CommandPath())
	})
	root.SetHelpCommand(helpCommand(root))
	root.SetUsageFunc(usage)
	for _, v := range verbs() {
		root.AddCommand(v.make(a))
	}
	for _, t := range manual.Topics {
		root.AddCommand(&cobra.Command{Use: t.Name, Short: t.Short, Long: t.Text})
	}
	if len(a.args) > 0 && strings.HasPrefix(a.args[0], cobra.ShellCompRequestCmd) { // the shell asks
		a.completions(root)
	}
	root.InitDefaultCompletionCmd()
	refuseUnknown(root)
	return root
}

func suggestion(cmd *cobra.Command, arg string) string {
	for cmd.SuggestionsMinimumDistance = range 3 { // the nearest: ls is two from every word of two letters
		if s := cmd.SuggestionsFor(arg[:min(len(arg), 20)]); len(s) > 0 { // a longer word is not a mistyped verb
			return " (did you mean " + s[0] + "?)"
		}
	}
	return ""
}

// with is for a verb that takes one word, which read finds, or none.
func with(read func(cmd *cobra.Command, args []string) (string, error), do func(word string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		word, err := read(cmd, args)
		if err != nil {
			return err
		}
		return do(word)
	}
}

func noWord(cmd *cobra.Command, args []string) (string, error) {
	if len(args) > 0 && strings.Contains(args[0], "://") {
		return "", exit.Usage("the store is named by --store: %s", cmd.UseLine())
	}
	if len(args) > 0 {
		return "", exit.Usage("%s takes no arguments: %s", cmd.Name(), cmd.UseLine())
	}
	return "", nil
}

// onePrefix may be left out, for all names.
func onePrefix(cmd *cobra.Command, args []string) (string, error) {
	if len(args) > 1 {
		return "", exit.Usage("%s takes at most one prefix: %s", cmd.Name(), cmd.UseLine())
	}
	return strings.Join(args, ""), nil
}

// oneName is for the verbs that take a lock's name and nothing else. A name that begins with '-'
// stands behind "--".
func oneName(cmd *cobra.Command, args []string) (string, error) {
	if len(args) != 1 || cmd.ArgsLenAtDash() > 0 {
		return "", exit.Usage("%s takes one lock name: %s", cmd.Name(), cmd.UseLine())
	}
	return args[0], checkName(args[0])
}

func checkName(name string) error {
	if err := driver.CheckName(name); err != nil {
		return exit.Usage("%s", strings.TrimPrefix(err.Error(), hasp.ErrInvalid.Error()+": "))
	}
	return nil
}
