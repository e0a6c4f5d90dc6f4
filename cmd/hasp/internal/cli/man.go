package cli

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "man DIR",
		Short:   "write the manual pages to a directory",
		Example: "  hasp man /usr/local/share/man/man1",
	}
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usage("man takes one directory: %s", cmd.UseLine())
		}
		if err := writeManual(cmd.Root(), args[0]); err != nil {
			return &failure{code: exitInternal, outcome: outcomeInternal, err: fmt.Errorf("write the manual: %w", err)}
		}
		return nil
	})
}

func writeManual(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root.DisableAutoGenTag = true // no date: the same source makes the same pages
	date := time.Unix(0, 0).UTC()
	return doc.GenManTree(root, &doc.GenManHeader{
		Title: "HASP", Section: "1", Date: &date, Source: "hasp " + thisVersion().Version, Manual: "hasp manual",
	}, dir)
}
