package etcdlock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// A store that is put back to an earlier state (a snapshot, or the copy of a data directory)
// forgets what it has confirmed since, and uses revisions again. All that is argued here goes
// by revisions that grow: what was read and what is told would be of two histories. So no
// session outlives what it can see of that: an answer to a transaction is at least as late as
// those that we had before it was sent, and the first that is not ends the session. What it
// held is lost, which is the truth for what was entered since, and the only safe answer for
// the rest.
//
// Others may have used as many revisions by then as we knew of. But the members must have been
// down for it, and with each the stream. So whenever a watch stands again, those who hold have
// their keys looked for, and those who wait look, whatever the revision is (ticket.standing).

// reached notes how far an answer to a transaction says that the store is, and returns an
// error if it was further when the transaction was sent.
func (s *session) reached(before, now int64) error {
	if now < before {
		err := fmt.Errorf("%w: etcd has gone back from revision %d to %d: was a snapshot restored?", driver.ErrGone, before, now)
		s.gone("", err)
		return err
	}
	for {
		old := s.rev.Load()
		if now <= old || s.rev.CompareAndSwap(old, now) {
			return nil
		}
	}
}

// sleep returns early if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
