package cli

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
	"github.com/spf13/cobra"
)

func (a *app) waitCommand() *cobra.Command {
	var f storeFlags
	var wait duration
	c := &cobra.Command{
		Use:   "wait [flags] NAME",
		Short: "wait until a lock is free",
		Long: `Return when the lock NAME is free at the moment, without taking it: by the
time you read this another client may have it. With --wait, exit with 75 if it takes
longer.`,
		Example: "  hasp wait --wait 5m deploy && echo deployed",
	}
	f.add(c.Flags(), "print the result as a JSON object")
	c.Flags().VarP(&wait, "wait", "w", "wait at most so long (default: as long as it takes)")
	return a.verb(c, with(oneName, func(name string) error { return a.waitFree(name, &f, wait) }))
}

func (a *app) waitFree(name string, f *storeFlags, wait duration) error {
	began := time.Now()
	ctx, stop := interruptible()
	defer stop()
	client, until, err := a.openWaiting(ctx, f, wait)
	if err != nil {
		return err
	}
	defer client.Close()
	wctx, cancel := waitUntil(ctx, until)
	defer cancel()
	seen, err := followHolder(wctx, client, name, func(err error) bool { return wait.d > 0 && isTransient(f, err) })
	if context.Cause(wctx) == errWaitOver && err != nil {
		lctx, cancel := context.WithTimeout(ctx, lookBound)
		defer cancel()
		q, ierr := client.Inspect(lctx, name)
		if ierr != nil {
			defer closeSoon(client) // before the other Close, which does nothing then
			q = seen
		}
		if ierr != nil && len(q.Holders) == 0 {
			return exit.Of(interruption(ctx, cmp.Or(err, ierr)))
		}
		if len(q.Holders) > 0 {
			return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeBusy, Err: fmt.Errorf("busy: %s; waited %s", view.HeldBy(q, isMe, time.Now()), view.Brief(time.Since(began)))}
		}
		err = nil
	}
	if err != nil {
		return exit.Of(interruption(ctx, err))
	}
	if !f.json {
		a.tell(fmt.Sprintf("%q is free%s", view.Clean(name), at(client)))
	} else {
		return a.printJSON(record{Event: "free", Time: time.Now(), Name: name, Store: client.Store(), Waited: time.Since(began).Seconds()})
	}
	return nil
}

// followHolder returns nil as soon as the name is free, and otherwise the last queue that it has
// seen. It waits out an outage, at the start only one for which patient says so.
func followHolder(ctx context.Context, client *hasp.Client, name string, patient func(error) bool) (queue hasp.Queue, last error) {
	seen := false
	for q, err := range client.Follow(ctx, name) {
		switch {
		case err == nil && len(q.Holders) == 0:
			return q, nil
		case err != nil && !seen && !patient(err):
			return queue, err
		case err == nil:
			queue = q
		}
		seen, last = true, err
	}
	return queue, last
}
