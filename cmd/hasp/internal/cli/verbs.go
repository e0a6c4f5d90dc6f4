package cli

import (
	"slices"
	"strings"

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

// addVerbs makes the verb that the command line begins with, or all of them: for help and
// completion, and to suggest one. To make all takes as long as a run of one of them; scripts start
// hasp often.
func (a *app) addVerbs(root *cobra.Command) {
	all := verbs()
	if len(a.args) > 0 {
		if i := slices.IndexFunc(all, func(v verb) bool { return v.name == a.args[0] }); i >= 0 {
			root.CompletionOptions.DisableDefaultCmd = true
			root.AddCommand(all[i].make(a))
			for _, v := range slices.Delete(all, i, i+1) {
				a.others = append(a.others, func() { v.make(a) })
			}
			return
		}
	}
	for _, v := range all {
		root.AddCommand(v.make(a))
	}
}

// noteOthers notes what variables and files can set for the verbs that were not made.
func (s *settings) noteOthers() {
	for _, other := range s.others {
		other()
	}
	s.others = nil
}

// verb completes a subcommand. Its flags are also taken from the environment, after the
// command line and before it runs.
func (a *app) verb(c *cobra.Command, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	c.DisableFlagsInUseLine = true
	c.Args = cobra.ArbitraryArgs // each verb says itself what is wrong with them
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Lookup("store") != nil { // the others hold nothing, and end as any program whose reader has gone
			surviveClosedPipes()
		}
		if err := refuseEmpty(cmd.Flags()); err != nil {
			return err
		}
		if err := a.refuseVariables(cmd.Flags()); err != nil {
			return err
		}
		if err := a.configure(cmd.Flags()); err != nil {
			return err
		}
		if err := a.chooseStore(cmd.Flags()); err != nil {
			return err
		}
		if err := checkTTL(cmd.Flags()); err != nil {
			return err
		}
		return run(cmd, args)
	}
	a.noteSettings(c.Flags())
	return c
}

// maySet reports whether a variable of the environment may set a flag.
func maySet(variable string) bool {
	variable, _, _ = strings.Cut(variable, "=")
	return strings.HasPrefix(variable, "HASP_") && variable != storeVariable && !slices.Contains(told, variable) && !isNumbered(variable)
}
