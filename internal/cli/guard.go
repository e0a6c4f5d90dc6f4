package cli

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"github.com/hasplock/hasp/guard"
	"github.com/hasplock/hasp/guard/fileguard"
	"github.com/spf13/cobra"
)

// guardCommand has a subcommand for each kind of resource that a script can write to.
func (a *app) guardCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "guard file [flags] PATH",
		Short: "write under a lock's fencing token, so that a late write is refused",
		Long: `A command that was stopped for longer than its lock lasts does not know that
somebody else has the lock now: its next write destroys the other's. hasp guard
writes only if no greater fencing token has been here.`,
	}
	c.AddCommand(a.guardFileCommand())
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return usage("hasp guard knows no %s; see: hasp guard --help", quoteArg(args[0]))
	})
}

// guardFlags say under which lock and token to write. hasp run puts both into the environment
// of its command, where the flags find them.
type guardFlags struct {
	name    string
	token   uint64
	advance bool
}

func (a *app) guardFileCommand() *cobra.Command {
	f := &guardFlags{}
	c := &cobra.Command{
		Use:   "file [flags] PATH",
		Short: "replace a file by standard input, unless the token is stale",
		Long: `Replace the file PATH by what standard input has, to its end, in one step, unless
a greater token of the lock has been here: then the file stays as it is, and the
exit code is 76. The greatest token is kept beside the file, in .NAME.fence.

Standard input should be complete before hasp reads it: of a pipe whose writer
fails it cannot tell the end from a premature one. --advance reads nothing and only
has older tokens refused; do that first, before reading what the new content is
made of.

Both must be on this machine's local file system; locks on servers guard files of
one machine this way. Lock and token come from hasp run by HASP_NAME and HASP_TOKEN.`,
		Example: `  hasp run --store redis://db nightly -- sh -e -c '
    hasp guard file --advance /srv/report.txt
    ./report > /tmp/report.new
    hasp guard file /srv/report.txt < /tmp/report.new'`,
	}
	c.Flags().StringVar(&f.name, "name", "", "the `NAME` of the lock that protects the file")
	c.Flags().Uint64Var(&f.token, "token", 0, "the fencing token `N` to write under")
	c.Flags().BoolVar(&f.advance, "advance", false, "write nothing, only have smaller tokens refused from now on")
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usage("guard file takes one path: %s", cmd.UseLine())
		}
		if f.name == "" || f.token == 0 {
			return usage("no lock or no token: run this under hasp run on a store that has tokens, or give --name and --token")
		}
		if err := guard.Check(f.name, f.token); err != nil {
			return usage("%v", err)
		}
		if err := a.guardFile(args[0], f); err != nil {
			return guardFailure(err)
		}
		return nil
	})
}

func (a *app) guardFile(path string, f *guardFlags) error {
	ctx, stop := interruptible()
	defer stop()
	file, err := fileguard.Open(path, f.name)
	if err != nil {
		return err
	}
	if f.advance {
		return interruption(ctx, file.Advance(ctx, f.token))
	}
	return interruption(ctx, file.Replace(ctx, f.token, a.input(ctx)))
}

// input is standard input, as a reader that a signal ends: the temporary file is removed then
// rather than left behind. A read of a descriptor cannot be interrupted, so it goes on in a
// goroutine that ends with the process.
func (a *app) input(ctx context.Context) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, a.stdin)
		w.CloseWithError(err) // nil is the end of the input
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(context.Cause(ctx)) })
	return r
}

// guardFailure gives the errors of guards their exit codes.
func guardFailure(err error) *failure {
	var in interrupted
	switch {
	case errors.As(err, &in):
		return fail(err)
	case errors.Is(err, guard.ErrStale):
		return &failure{code: exitLost, outcome: outcomeLost, err: err}
	case errors.Is(err, guard.ErrInvalid), errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return &failure{code: exitConfig, outcome: outcomeConfig, err: err}
	}
	return &failure{code: exitInternal, outcome: outcomeInternal, err: err}
}
