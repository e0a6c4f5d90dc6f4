package broken

import (
	"context"
	"errors"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// Flaws in how a held lease comes to another client.
var transferControls = []Control{
	{
		Name: "hands on by leaving and queueing again",
		Flaw: Flaw{ticket: func(b fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &relay{fullTicket: g, b: b, r: r}
		}},
		Seen: []string{"Transfer/Moved", "Transfer/Adopt"},
	},
	{
		Name: "lets every session adopt",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
			return &generous{g}
		}},
		Seen: []string{"Transfer/OneAdopter", "Transfer/AdoptRefused"},
	},
}

// relay takes the old entry out and stands in the queue itself.
type relay struct {
	fullTicket
	b fullBackend
	r driver.Request
}

func (t *relay) Adopt(ctx context.Context, id string, _ uint64) (driver.Verdict, error) {
	if err := t.b.Evict(ctx, t.r.Name, id, ""); err != nil && !errors.Is(err, driver.ErrGone) {
		return driver.Verdict{}, err
	}
	return t.Enqueue(ctx)
}

// generous does not look whether there was anything to adopt.
type generous struct{ fullTicket }

func (t *generous) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	_, _ = t.fullTicket.Adopt(ctx, id, seq)
	return driver.Verdict{Held: true, Token: seq}, nil
}

// Flaws in what an ID is worth to another client than the one that it belongs to.
var idControls = []Control{
	{
		Name: "finds an entry by its ID alone",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			first, _ := byID.LoadOrStore(r.ID, g)
			return first.(driver.Ticket)
		}},
		Seen: []string{"IDs/OfAnotherName", "IDs/OfAnotherSession", "IDs/OfAnotherSessionsWaiter"},
	},
	{
		Name: "evicts by the ID alone",
		Flaw: Flaw{evict: func(b fullBackend, ctx context.Context, _, id, note string) (err error) {
			err = driver.ErrGone
			_ = b.Names(ctx, "", func(name string) bool {
				err = b.Evict(ctx, name, id, note)
				return err != nil
			})
			return err
		}},
		Seen: []string{"IDs/Evicted"},
	},
}

// byID has the first ticket of each ID.
var byID sync.Map
