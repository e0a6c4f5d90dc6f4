package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
)

// reasonBound is how long a loss waits for its reason. The command has been told by then.
const reasonBound = 2 * time.Second

// explainLoss adds to a loss who has taken the lock away and why, where that is how it was lost and
// where the store keeps it. The store writes it in the same step as it removes the entry, so it is there
// when the loss is noticed.
func explainLoss(c *hasp.Client, g *commandLease, lost error) error {
	ctx, cancel := context.WithTimeout(context.Background(), reasonBound)
	defer cancel()
	for _, l := range g.leases {
		var how *hasp.LostError
		if !errors.As(l.Err(), &how) || how.Reason == hasp.ReasonExpired {
			continue
		}
		e, err := c.LastEviction(ctx, l.Name())
		if err != nil || e == nil || e.ID != l.ID() {
			continue // the loss itself is known, and the rest is for people
		}
		why := ""
		if e.Why != "" {
			why = ": " + clean(e.Why)
		}
		return fmt.Errorf("%w; %s took it away%s", lost, ownerText(e.By), why)
	}
	return lost
}
