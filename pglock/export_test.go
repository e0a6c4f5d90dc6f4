package pglock

import (
	"context"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/doctor"
)

// Slice has a store of strategy advisory wait in slices of this length.
func Slice(b driver.Backend, d time.Duration) { b.(*bound).opts.Slice = d }

// Idle is how many connections a store of strategy advisory keeps for the next locks.
func Idle(b driver.Backend) int {
	s := b.(*bound)
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}

// MostGranted is the longest for which a connection is trusted without an answer.
const MostGranted = mostGranted

// MostNoted is for how many names a connection is recorded before it is given up.
const MostNoted = mostNoted

// GiveUp has a ticket be one whose release was not answered, on a connection to this process of the
// server.
func GiveUp(t driver.Ticket, pid int) { t.(*boundTicket).forget(uint32(pid)) }

// Latest is the version of the tables.
var Latest = len(migrations)

// AddStep makes a store that of a newer program, whose tables have one more version.
func AddStep(b driver.Backend, step string) {
	n := &tablesOf(b).naming
	n.steps = append(slices.Clone(n.steps), step)
}

// Sweep does what a session does once in a minute.
func Sweep(ctx context.Context, b driver.Backend) error {
	t := tablesOf(b)
	if t.opts.Strategy == StrategyAdvisory && t.opts.NoFence {
		return nil
	}
	return t.ask(ctx, "SELECT hasp_tidy($1::bigint)", []any{t.opts.Retention.Microseconds()}, new(bool))
}

// Stop runs a statement in a transaction of several, and is stopped before its end until ctx ends.
func Stop(ctx context.Context, b driver.Backend, stmt string, stopped func()) error {
	t := tablesOf(b)
	return t.pool.atomically(ctx, func(tx runner) error {
		if err := tx.script(ctx, t.naming.sql(stmt)); err != nil {
			return err
		}
		stopped()
		<-ctx.Done()
		return ctx.Err()
	})
}

func tablesOf(b driver.Backend) *tables {
	if t, ok := b.(*table); ok {
		return t.tables
	}
	return b.(*bound).tables
}

// Product is the name of what says this of itself, "" for PostgreSQL.
func Product(said string) string {
	p, _ := doctor.Recognise(products, said)
	return p.Name
}

// FenceSchema makes the table of sqlfence.
const FenceSchema = fenceSchema
