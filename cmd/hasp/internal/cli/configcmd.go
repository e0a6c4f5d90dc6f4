package cli

import (
	"fmt"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/manual"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/settings"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/spf13/cobra"
)

// configuration is the output of config.
type configuration struct {
	Files    []*settings.File   `json:"files"` // the one that wins first
	Settings []settings.Setting `json:"settings"`
}

func (a *app) configCommand() *cobra.Command {
	var f storeFlags
	c := &cobra.Command{
		Use:   "config [flags]",
		Short: "show the settings in force, and where they come from",
		Long: `Show the store in use, every setting that a variable or a configuration file
makes, where it stands, and which files were read. Passwords are not shown. The
store is not asked for anything.

` + manual.Config,
		Example: "  hasp config\n  HASP_WAIT=30s hasp config --json",
	}
	f.add(c.Flags(), "as a JSON object")
	return a.verb(c, with(noWord, func(string) error {
		files, all, err := a.settings.InForce(&f.store)
		if err != nil {
			return err
		}
		d := configuration{files, all}
		if f.json {
			return a.printJSON(d)
		}
		return a.print("%s\n%s", d.table(), d.fileTable())
	}))
}

func (d *configuration) table() string {
	t := view.NewTable("KEY", "VALUE", "FROM")
	for _, s := range d.Settings {
		t.Row(s.Key, s.Value, view.Clean(s.From))
	}
	return fmt.Sprint(t)
}

func (d *configuration) fileTable() string {
	t := view.NewTable("FILE", "STATE")
	for _, f := range d.Files {
		t.Row(view.Clean(f.Path), f.State)
	}
	return fmt.Sprint(t)
}
