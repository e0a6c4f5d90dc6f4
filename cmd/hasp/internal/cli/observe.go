package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
	"github.com/hasplock/hasp/internal/exit"
)

// leaderLine is the line that elect --observe --json prints at every change.
type leaderLine struct {
	Time   time.Time `json:"time"`
	Name   string    `json:"name"`
	Store  string    `json:"store"`
	Leads  bool      `json:"leads"` // there is a leader
	Holder string    `json:"holder,omitempty"`
	Token  uint64    `json:"token,omitempty"`
	records.Value
	Owner *hasp.Owner `json:"owner,omitempty"`
	Since time.Time   `json:"since,omitzero"`
}

// observe follows the leader until a signal comes, through outages of the store.
func (a *app) observe(name string, f *storeFlags) error {
	ctx, stop := interruptible()
	defer stop()
	client, err := a.openAlways(ctx, f, a.tellTrying(f))
	if err != nil {
		return err
	}
	defer client.Close()
	seen := false
	for leader, err := range client.Election(name).Observe(ctx) {
		switch {
		case ctx.Err() != nil:
			return exit.Of(interruption(ctx, ctx.Err()))
		case err != nil && (!seen && !isTransient(f, err) || errors.Is(err, hasp.ErrUnsupported)):
			return exit.Of(err)
		case err != nil:
			a.tell(err.Error())
			continue
		}
		seen = true
		if err := a.printLeader(client, name, leader, f.json); err != nil {
			return err
		}
	}
	return exit.Of(interruption(ctx, context.Canceled))
}

// observeOnce tells who leads at this moment.
func (a *app) observeOnce(name string, f *storeFlags) error {
	return a.asking(f, func(ctx context.Context, c *hasp.Client) error {
		leader, err := c.Election(name).Leader(ctx)
		var no error
		if errors.Is(err, hasp.ErrNotFound) {
			no, err = &exit.Failure{Code: exit.CodeNo, Outcome: exit.OutcomeNo, Err: err, Told: true}, nil
		}
		if err != nil {
			return err
		}
		return cmp.Or(a.printLeader(c, name, leader, f.json), no)
	})
}

func (a *app) printLeader(c *hasp.Client, name string, l hasp.Entry, asJSON bool) error {
	if asJSON {
		line := leaderLine{Time: time.Now(), Name: name, Store: c.Store()}
		if l.ID != "" {
			line.Leads, line.Holder, line.Token = true, l.ID, l.Token
			line.Owner, line.Since, line.Value = &l.Owner, l.Since, records.ValueOf(l.Value)
		}
		return a.printJSON(line)
	}
	if l.ID == "" {
		return a.print("%q has no leader%s\n", view.Clean(name), at(c))
	}
	value := ""
	if len(l.Value) > 0 {
		value = fmt.Sprintf(", value %q", l.Value)
	}
	return a.print("%q is led by %s%s%s\n", view.Clean(name), view.Owner(l.Owner), view.CommaToken(l.Token), value)
}
