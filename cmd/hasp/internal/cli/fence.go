package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strconv"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/filefence"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/hasplock/hasp/internal/signals"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// fenceCommand has a subcommand for each kind of resource that a script can write to.
func (a *app) fenceCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "fence file [flags] PATH",
		Short: "write under a lock's fencing token, so that a late write is refused",
		Long: `A command that was stopped for longer than its lock lasts does not know that
another process has the lock now: its next write destroys the other's. hasp fence
writes only if the resource has seen no greater fencing token.`,
	}
	c.AddCommand(a.fenceFileCommand())
	return c // refuseUnknown makes it run
}

// fenceFlags say under which lock and token to write, and how long to wait for another writer.
type fenceFlags struct {
	name    string
	token   uint64
	advance bool
	wait    duration
}

// fromRun takes what the flags do not say from the environment of the command of hasp run. These
// variables exist for this verb; no other verb takes a default from them.
func (f *fenceFlags) fromRun(fs *pflag.FlagSet, getenv func(string) string) error {
	if !fs.Changed("name") {
		f.name = getenv("HASP_NAME")
	}
	if token := getenv("HASP_TOKEN"); token != "" && !fs.Changed("token") {
		var err error
		if f.token, err = strconv.ParseUint(token, 10, 64); err != nil {
			return exit.Usage("HASP_TOKEN in the environment: %s is no token", view.Quote(token))
		}
	}
	return nil
}

func (a *app) fenceFileCommand() *cobra.Command {
	f := &fenceFlags{}
	c := &cobra.Command{
		Use:   "file [flags] PATH",
		Short: "replace a file by standard input, unless the token is stale",
		Long: `Replace the file PATH by standard input, read to its end, in one step, unless the
file has seen a greater token of the lock: then the file stays as it is, and the
exit code is 76. The greatest token is kept beside the file, in .NAME.fence.

Standard input should be complete before hasp reads it: if the writer of a pipe
fails, hasp cannot tell that from the normal end. --advance reads nothing; from
then on older tokens are refused. Do that first, before reading the data that the
new content is made from.

Both must be on this machine's local file system; locks on servers protect files of
one machine this way. Lock and token come from hasp run by HASP_NAME and HASP_TOKEN.
Writers of one file take turns, each for a moment. If one is stopped in its turn,
the others give up after --wait (exit code 75) and write nothing.`,
		Example: `  hasp run --store redis://db nightly -- sh -e -c '
    hasp fence file --advance /srv/report.txt
    ./report > /tmp/report.new
    hasp fence file /srv/report.txt < /tmp/report.new'`,
	}
	f.wait = duration{d: filefence.Patience}
	c.Flags().StringVar(&f.name, "name", "", "the `NAME` of the lock that protects the file (default: $HASP_NAME)")
	c.Flags().Uint64Var(&f.token, "token", 0, "the fencing token `N` to write under (default: $HASP_TOKEN)")
	c.Flags().BoolVar(&f.advance, "advance", false, "write nothing, only have smaller tokens refused from now on")
	c.Flags().VarP(&f.wait, "wait", "w", "wait at most so long for another that is writing the file")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return exit.Usage("fence file takes one path: %s", cmd.UseLine())
		}
		if err := f.fromRun(cmd.Flags(), a.settings.Getenv); err != nil {
			return err
		}
		if (f.name == "" || f.token == 0) && a.settings.Getenv("HASP_HOLDER_1") != "" {
			return exit.Usage(`say which of the locks protects the file, as in --name "$HASP_NAME_1" --token "$HASP_TOKEN_1"`)
		}
		if f.name == "" || f.token == 0 {
			return exit.Usage("no lock or no token: run this under hasp run on a store that has tokens, or give --name and --token")
		}
		if err := fencing.Check(f.name, f.token); err != nil {
			return exit.Usage("%v", err)
		}
		if err := a.fenceFile(args[0], f); err != nil {
			return fenceFailure(err)
		}
		return nil
	})
}

func (a *app) fenceFile(path string, f *fenceFlags) error {
	ctx, stop := interruptible()
	defer stop()
	o := &filefence.Options{Wait: max(f.wait.d, 1)} // 0 is not the default here
	file, err := filefence.With(ctx, path, fencing.GrantOf(f.name, f.token), o)
	if err != nil || f.advance {
		return interruption(ctx, err)
	}
	return interruption(ctx, file.Replace(ctx, a.input(ctx)))
}

// input is standard input as a reader that a signal ends, so that the temporary file is removed and
// not left behind. A read of a descriptor cannot be interrupted, so it goes on in a goroutine that
// ends with the process.
func (a *app) input(ctx context.Context) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, a.stdin)
		w.CloseWithError(err) // nil is the end of the input
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	return r
}

// fenceFailure gives the errors of fencing their exit codes.
func fenceFailure(err error) *exit.Failure {
	var in signals.Interrupted
	switch {
	case errors.As(err, &in):
		return exit.Of(err)
	case errors.Is(err, fencing.ErrStale):
		return &exit.Failure{Code: exit.CodeLost, Outcome: exit.OutcomeLost, Err: err}
	case errors.Is(err, filefence.ErrBlocked):
		return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeBusy, Err: err}
	case errors.Is(err, fencing.ErrInvalid), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return &exit.Failure{Code: exit.CodeConfig, Outcome: exit.OutcomeConfig, Err: err}
	}
	return &exit.Failure{Code: exit.CodeInternal, Outcome: exit.OutcomeInternal, Err: err}
}
