package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

func (a *app) deadlocksCommand() *cobra.Command {
	var f storeFlags
	c := &cobra.Command{
		Use:   "deadlocks [flags]",
		Short: "find holders that wait for each other in a cycle",
		Long: `Read the queues of all locks and print each cycle of owners in which each waits
for a lock that the next one holds. A cycle is certain if its owners tell the
store what they hold while they wait (programs that lock with the context of
their lease, nested runs of hasp). Otherwise the cycle is only suspected: the
same process holds one lock and waits for another, perhaps in different tasks.
Exit code 75 if there is a cycle, 0 if there is none.`,
		Example: "  hasp deadlocks && echo all is well",
	}
	f.add(c.Flags(), "one JSON object per cycle and line")
	return a.verb(c, with(noWord, func(string) error { return a.deadlocks(&f) }))
}

func (a *app) deadlocks(f *storeFlags) error {
	return a.asking(f, func(ctx context.Context, c *hasp.Client) error {
		found, err := c.Deadlocks(ctx)
		if err != nil {
			return err
		}
		for _, d := range found {
			if f.json {
				err = a.printJSON(records.OfDeadlock(d))
			} else {
				err = a.print("%s", cycle(d, time.Now()))
			}
			if err != nil {
				return err
			}
		}
		if len(found) == 0 {
			a.tell("no deadlock" + at(c))
			return nil
		}
		return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeBusy, Err: fmt.Errorf("%d found; hasp release --force breaks one", len(found))}
	})
}

func cycle(d hasp.Deadlock, now time.Time) *view.Table {
	kind := "SUSPECTED"
	if d.Certain {
		kind = "DEADLOCK"
	}
	t := view.NewTable(kind, "WAITS FOR", "SINCE", "HELD BY", "HOLDER'S ID")
	for _, w := range d.Waits {
		since, _ := view.Asked(w.Waiter, now)
		t.Row(view.Owner(w.Waiter.Owner), view.Clean(w.Name), since, view.Owner(w.On.Owner), view.Clean(w.On.ID))
	}
	return t
}
