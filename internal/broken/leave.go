package broken

import (
	"context"
	"errors"

	"github.com/hasplock/hasp/driver"
)

// Flaws in how entries go, or fail to.
var leaveControls = []Control{
	{
		Name: "leaves orphans when a waiter gives up",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
			return &orphaning{fullTicket: g}
		}},
		Seen: []string{"Cancel/Waiting/mutex", "Cancel/DuringEnqueue", "Cancel/WhileCutOff", "Contract/MiddleLeaves", "Leaks/Cycles"},
	},
	{
		Name: "lets a late request make an entry",
		Flaw: Flaw{ticket: func(_ fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &another{fullTicket: g, s: s, r: r, asked: 1}
		}},
		Seen: []string{"Contract/LateEnqueue"},
	},
	{
		Name: "queues a try",
		Flaw: Flaw{request: func(r driver.Request) driver.Request { r.NoWait = false; return r }},
		Seen: []string{"Contract/NoWaitLeavesNothing", "Try/Busy/mutex"},
	},
	{
		Name: "deletes by name the entry in front",
		Flaw: Flaw{ticket: func(b fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &plainDelete{g, b, r}
		}},
		Seen: []string{"Contract/LeaveTwice", "Cancel/Waiting/mutex", "Cancel/Waiting/drained", "Transfer/Adopt"},
	},
	{
		Name: "confirms every request",
		Flaw: Flaw{
			open:   untold,
			ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket { return &yesman{g} },
		},
		Seen: []string{"Contract/LeaveTwice", "Contract/NoWaitLeavesNothing", "Contract/Publish", "Evict/Forgotten"},
	},
	{
		Name: "keeps of an eviction that there was one",
		Flaw: Flaw{evict: func(b fullBackend, ctx context.Context, name, id, _ string) error {
			return b.Evict(ctx, name, id, "{}")
		}},
		Seen: []string{"Evict/Recorded"},
	},
	{
		Name: "leaves entries behind when a session closes",
		Flaw: Flaw{session: func(_ fullBackend, _ driver.SessionOptions, s driver.Session) driver.Session { return &undying{s} }},
		Seen: []string{"Contract/SessionClose", "Contract/WaiterOfClosedSession"},
	},
}

// orphaning gives up without telling the store.
type orphaning struct {
	fullTicket
	held bool
}

func (t *orphaning) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Enqueue(ctx)
	t.held = v.Held
	return v, err
}

func (t *orphaning) Wait(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Wait(ctx)
	t.held = v.Held
	return v, err
}

func (t *orphaning) Leave(ctx context.Context) error {
	if !t.held {
		return nil
	}
	return t.fullTicket.Leave(ctx)
}

// plainDelete removes the lock, not the entry.
type plainDelete struct {
	fullTicket
	b fullBackend
	r driver.Request
}

func (t *plainDelete) Leave(ctx context.Context) error {
	entries, err := t.b.List(ctx, t.r.Name, 0)
	if err != nil || len(entries) == 0 {
		return errors.Join(err, driver.ErrGone)
	}
	return t.b.Evict(ctx, t.r.Name, entries[0].ID, "")
}

// yesman does not look whether there was anything.
type yesman struct{ fullTicket }

func (t *yesman) Leave(ctx context.Context) error { return t.yes(t.fullTicket.Leave(ctx)) }

func (t *yesman) Publish(ctx context.Context, value []byte) error {
	return t.yes(t.fullTicket.Publish(ctx, value))
}

func (t *yesman) yes(err error) error {
	if errors.Is(err, driver.ErrGone) {
		return nil
	}
	return err
}

// undying leaves it to the TTL.
type undying struct{ driver.Session }

func (s *undying) Close(context.Context) error { return nil }
