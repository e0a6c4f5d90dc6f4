package drivertest

import (
	"errors"

	"github.com/hasplock/hasp/driver"
)

// What a test requires of a store, and why it is skipped if the store does not promise that. A
// separate test checks that the core refuses what is not promised (Traits/Refused).

func needsFIFO(e *env) string     { return unless(e.traits.FIFO, "an order of grants") }
func needsShared(e *env) string   { return unless(e.traits.Shared, "read locks") }
func needsCounting(e *env) string { return unless(e.traits.Counting, "semaphores") }
func needsFencing(e *env) string  { return unless(e.traits.Fencing, "fencing tokens") }
func needsValues(e *env) string   { return unless(e.traits.Values, "values") }
func needsPush(e *env) string     { return unless(e.traits.Push, "to push") }

func needsLeases(e *env) string {
	if e.traits.Liveness != driver.Leased {
		return "entries are " + e.traits.Liveness.String() + ": no pause loses them"
	}
	return ""
}

// needsLoss is for tests of a client whose store does not answer.
func needsLoss(e *env) string {
	if e.traits.Liveness == driver.ProcessBound {
		return "entries are process-bound: nothing can be lost"
	}
	return ""
}

func needsNames(e *env) string   { return unless(is[driver.Namer](e), "to list names") }
func needsWatch(e *env) string   { return unless(is[driver.Watcher](e), "to watch a name") }
func needsEvicter(e *env) string { return unless(is[driver.Evicter](e), "to evict") }

func needsMigrator(e *env) string  { return unless(is[driver.Migrator](e), "tables to migrate") }
func needsDiagnoser(e *env) string { return unless(is[driver.Diagnoser](e), "to examine itself") }

func needsRecord(e *env) string {
	if why := needsEvicter(e); why != "" {
		return why
	}
	_, err := e.backend().(driver.Evicter).LastEviction(e.ctx(), e.name())
	return unless(!errors.Is(err, driver.ErrUnsupported), "to keep a record of evictions")
}

func needsReopen(e *env) string {
	if e.h.Reopen == nil {
		return "the store cannot be restarted here (Harness.Reopen is nil)"
	}
	return ""
}

func is[T any](e *env) bool {
	_, ok := e.backend().(T)
	return ok
}

func unless(promised bool, what string) string {
	if promised {
		return ""
	}
	return "the store does not promise " + what
}

// both is for a test with two needs.
func both(a, b func(*env) string) func(*env) string {
	return func(e *env) string {
		if why := a(e); why != "" {
			return why
		}
		return b(e)
	}
}
