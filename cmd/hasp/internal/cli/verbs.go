package cli

import (
	"slices"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/output"
	"github.com/spf13/cobra"
)

// verb makes a subcommand.
type verb struct {
	name string
	make func(*app) *cobra.Command
}

// optionalVerbs are those that a build may leave out: each is in a file with a build tag.
var optionalVerbs []verb

// verbs are all of them.
func verbs() []verb {
	return slices.Concat([]verb{
		{"run", (*app).runCommand}, {"try", (*app).tryCommand}, {"hold", (*app).holdCommand}, {"wait", (*app).waitCommand},
		{"ls", (*app).lsCommand}, {"who", (*app).whoCommand}, {"top", (*app).topCommand}, {"deadlocks", (*app).deadlocksCommand},
		{"release", (*app).releaseCommand}, {"elect", (*app).electCommand}, {"fence", (*app).fenceCommand}, {"doctor", (*app).doctorCommand},
		{"migrate", (*app).migrateCommand}, {"config", (*app).configCommand},
		{"version", (*app).versionCommand},
	}, optionalVerbs)
}

// verb completes a subcommand. Its flags are also taken from the environment, after the
// command line and before it runs.
func (a *app) verb(c *cobra.Command, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	c.DisableFlagsInUseLine = true
	c.Args = cobra.ArbitraryArgs // each verb says itself what is wrong with them
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Lookup("store") != nil { // the others hold nothing, and end as any program whose reader has gone
			output.SurviveClosedPipes()
		}
		if err := refuseEmpty(cmd.Flags()); err != nil {
			return err
		}
		if err := a.settings.Apply(cmd.Flags()); err != nil {
			return err
		}
		if err := checkTTL(cmd.Flags()); err != nil {
			return err
		}
		return run(cmd, args)
	}
	a.settings.Note(c.Flags())
	return c
}
