package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

const manVerb = "man"

func (a *app) manCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "man DIR",
		Short:   "write the manual pages to a directory",
		Long:    "Write a manual page for hasp and for each of its verbs to DIR, which must exist.",
		Example: "  hasp man /usr/local/share/man/man1",
	}
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usage("man takes one directory: %s", cmd.UseLine())
		}
		if err := checkDir(args[0]); err != nil {
			return usage("%v: make it first", err)
		}
		if err := writeManual(cmd.Root(), args[0]); err != nil {
			return &failure{code: exitInternal, outcome: outcomeInternal, err: fmt.Errorf("write the manual: %w", err)}
		}
		return nil
	})
}
