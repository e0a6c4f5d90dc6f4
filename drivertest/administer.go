package drivertest

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// The requests of administrators: create the store's tables, and report what is wrong with it.
var administerTests = []test{
	{name: "Migrate", needs: needsMigrator, run: testMigrate},
	{name: "MigrateAtOnce", needs: needsMigrator, run: testMigrateAtOnce},
	{name: "Diagnose", needs: needsDiagnoser, run: testDiagnose},
}

// Migrating ends at one version for every process and after any number of runs, does nothing the
// second time, and does not touch held locks.
func testMigrate(e *env) {
	name := e.name()
	held, v := e.enter(e.session(e.backend(), nil), e.whole(name))
	e.holds(held, v)
	b := e.backend().(driver.Migrator)
	text := b.Schema()
	if text == "" || text != b.Schema() || text != e.backend().(driver.Migrator).Schema() {
		e.Errorf("the schema is empty, or not the same each time: %q", text)
	}
	_, version := e.migrate(b)
	for range 2 {
		if from, to := e.migrate(e.backend().(driver.Migrator)); from != to || to != version {
			e.Errorf("migrated from version %d to %d, when it had been brought to %d before", from, to, version)
		}
	}
	ended, cancel := context.WithCancel(e.ctx())
	cancel()
	if _, _, err := b.Migrate(ended); err != nil && !errors.Is(err, context.Canceled) {
		e.Errorf("Migrate with an ended context: %v", err)
	}
	if v, err := e.ask(held); err != nil || !v.Held {
		e.Errorf("what was held before the migration: %+v, %v", v, err)
	}
	e.leave(held)
}

// migrate requires valid versions. The store has been used, so there is one.
func (e *env) migrate(b driver.Migrator) (from, to int) {
	e.Helper()
	from, to, err := b.Migrate(e.ctx())
	if err != nil || from < 0 || to < 1 || from > to {
		e.Fatalf("migrated from version %d to %d, %v", from, to, err)
	}
	return from, to
}

// Several processes that start together all migrate.
func testMigrateAtOnce(e *env) {
	const n = 4
	var backends []driver.Migrator
	for range n {
		backends = append(backends, e.backend().(driver.Migrator))
	}
	var to [n]int
	var wg sync.WaitGroup
	for i, b := range backends {
		wg.Go(func() {
			var err error
			if _, to[i], err = b.Migrate(e.ctx()); err != nil {
				e.Errorf("migrate, one of %d: %v", n, err)
			}
		})
	}
	wg.Wait()
	for _, v := range to {
		if v != to[0] {
			e.Errorf("migrated at once, to the versions %v", to)
			break
		}
	}
	e.release(e.must(e.client().Mutex(e.name()).Lock(e.ctx())))
}

// A diagnosis is for people: each finding has a valid grade, names its subject and what was found,
// and contains no secret (O2). It touches no lock, and ends with its context.
func testDiagnose(e *env) {
	b := e.backend()
	// A client holds it, and renews it: the diagnosis of a full or busy store may take long.
	held := e.must(e.client().Mutex(e.name()).Lock(e.ctx()))
	findings, err := b.(driver.Diagnoser).Diagnose(e.ctx())
	e.slowIfUnknown(err)
	if err != nil || len(findings) == 0 {
		e.Fatalf("a store that works: findings %+v, %v; want some", findings, err)
	}
	warnings, err := b.(driver.Diagnoser).Warnings(e.ctx())
	e.slowIfUnknown(err)
	if err != nil {
		e.Errorf("warnings: %v", err)
	}
	for _, f := range append(findings, warnings...) {
		if f.Level != driver.Info && f.Level != driver.Warn && f.Level != driver.Bad {
			e.Errorf("the level %q does not exist: %+v", f.Level, f)
		}
		if f.Subject == "" || f.Text == "" {
			e.Errorf("a finding of nothing: %+v", f)
		}
		// Both together, as in a URL: either alone may be an ordinary word.
		if u, err := url.Parse(e.h.URL); err == nil && u.User != nil && strings.Contains(f.Text+f.Cure, u.User.String()+"@") {
			e.Error("a finding shows user and password of the store's URL")
		}
	}
	ended, cancel := context.WithCancel(e.ctx())
	cancel()
	began := time.Now()
	_, _ = b.(driver.Diagnoser).Diagnose(ended) // it may say so, or find that nothing answers
	if took := time.Since(began); took > e.limit(time.Second) {
		e.Errorf("Diagnose with an ended context took %s", took)
	}
	e.release(held) // which fails if it is gone
}
