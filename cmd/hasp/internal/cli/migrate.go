package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

// migrateLine is the output of migrate --json.
type migrateLine struct {
	Store   string `json:"store"`
	From    int    `json:"from"` // 0: there were no tables
	To      int    `json:"to"`
	Granted string `json:"granted,omitempty"` // the role of --grant
}

func (a *app) migrateCommand() *cobra.Command {
	var f storeFlags
	var show bool
	var role string
	c := &cobra.Command{
		Use:   "migrate [flags]",
		Short: "create or update the tables of a database",
		Long: `Create the tables that locks in a database need, or bring them up to date. That
also happens at the first use, if the role in use may do it; this verb is for
roles that may not, and for people who review changes to their database. Running
it twice, or from several machines at once, does no harm.

With PostgreSQL, --grant ROLE then lets that role use the tables, and hasp_fence
(of sqlfence), which is made if it is missing. The role needs no right to create.

Stores that need no tables say so (exit code 78).`,
		Example: `  hasp migrate --store postgres://admin@db/app
  hasp migrate --store postgres://admin@db/app --grant app
  hasp migrate --store mysql://app@db/app --print | less`,
	}
	f.add(c.Flags(), "print the versions before and after as a JSON object")
	c.Flags().BoolVar(&show, "print", false, "print the statements instead; the store is not asked for anything")
	c.Flags().StringVar(&role, "grant", "", "also let this role use the tables (PostgreSQL)")
	return a.verb(c, with(noWord, func(string) error {
		if show && role != "" {
			return exit.Usage("--print changes nothing, so not with --grant; what it prints ends with the grants")
		}
		return a.migrate(&f, show, role)
	}))
}

func (a *app) migrate(f *storeFlags, show bool, role string) error {
	return a.asking(f, func(ctx context.Context, c *hasp.Client) error {
		m, ok := c.Backend().(driver.Migrator)
		if !ok {
			return fmt.Errorf("%w: %s needs no tables", hasp.ErrUnsupported, c.Backend())
		}
		granter, ok := m.(driver.Granter)
		if role != "" && !ok {
			return fmt.Errorf("%w: --grant is for PostgreSQL; the page of this store says which rights a role needs", hasp.ErrUnsupported)
		}
		if show {
			return a.print("%s\n", strings.TrimSpace(m.Schema()))
		}
		from, to, err := m.Migrate(ctx)
		if err == nil && role != "" {
			err = granter.Grant(ctx, role)
		}
		switch {
		case err != nil:
			return err
		case f.json:
			return a.printJSON(migrateLine{c.Store(), from, to, role})
		case from == to:
			a.tell(fmt.Sprintf("%s is up to date (version %d)", c.Backend(), to))
		default:
			a.tell(fmt.Sprintf("%s was brought from version %d to %d", c.Backend(), from, to))
		}
		if role != "" {
			a.tell(fmt.Sprintf("role %q may use its tables", role))
		}
		return nil
	})
}
