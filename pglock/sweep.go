package pglock

import (
	"context"
	"math/rand/v2"
	"time"
)

// sweepEvery is how often a session offers to clean up after those who died, and after names
// that nobody uses. There is no one whose job it is: the server has one of those who offer do it,
// once in a minute for all of them.
const sweepEvery = time.Minute

func (t *tables) sweep(done context.Context) {
	for more := false; ; {
		pause := sweepEvery/2 + rand.N(sweepEvery)
		if more {
			pause = time.Second // in between others may use the database
		}
		timer := time.NewTimer(pause)
		select {
		case <-done.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		ctx, cancel := context.WithTimeout(done, sweepEvery/2)
		// After an error the next one tries again.
		err := t.ask(ctx, "SELECT hasp_tidy($1::bigint)", []any{t.opts.Retention.Microseconds()}, &more)
		more = more && err == nil
		cancel()
	}
}
