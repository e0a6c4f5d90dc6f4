package goosehasp_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/adapters/goosehasp"
	"github.com/hasplock/hasp/adapters/internal/processes"
	_ "github.com/hasplock/hasp/filelock"
)

const name = "migrate/orders"

// provider migrates the database of dir by migrate.
func provider(t *testing.T, dir string, migrate func(context.Context) error, opts ...goose.ProviderOption) *goose.Provider {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "db")+"?_pragma=busy_timeout(10000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	m := goose.NewGoMigration(1, &goose.GoFunc{RunDB: func(ctx context.Context, _ *sql.DB) error { return migrate(ctx) }}, nil)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, nil, append(opts, goose.WithGoMigrations(m))...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Of three processes one migrates, once, and the others find it done. The control: without the
// locker they begin together.
func TestProcesses(t *testing.T) {
	if dir, mode, is := processes.Child(); is {
		var opts []goose.ProviderOption
		if mode == "locked" {
			opts = append(opts, goose.WithLocker(goosehasp.New(processes.Client(t, dir), name)))
		}
		p := provider(t, dir, func(context.Context) error { return processes.Inside(dir, 2*time.Second) }, opts...)
		if _, err := p.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir := t.TempDir()
	for _, out := range processes.Run(t, 3, dir, "locked") {
		t.Error(out)
	}
	if n := len(processes.Runs(t, dir)); n != 1 {
		t.Errorf("migrated %d times", n)
	}
	out := strings.Join(processes.Run(t, 3, t.TempDir(), "control"), "")
	if !strings.Contains(out, processes.ErrOverlap.Error()) {
		t.Errorf("the control was not caught: %s", out)
	}
}

// A loss is told when the run ends, and nothing is kept that the next run would wait for.
func TestLoss(t *testing.T) {
	dir := t.TempDir()
	c := processes.Client(t, dir)
	p := provider(t, dir, func(ctx context.Context) error { return processes.Lose(ctx, c, name) },
		goose.WithLocker(goosehasp.New(c, name)))
	if _, err := p.Up(t.Context()); !errors.Is(err, hasp.ErrLost) {
		t.Errorf("%v, want the loss", err)
	}
	if err := os.Remove(filepath.Join(dir, "db")); err != nil {
		t.Fatal(err)
	}
	again := provider(t, dir, func(context.Context) error { return nil }, goose.WithLocker(goosehasp.New(c, name)))
	if _, err := again.Up(t.Context()); err != nil {
		t.Errorf("the next run: %v", err)
	}
	if err := goosehasp.New(c, name).Unlock(t.Context(), nil); err == nil {
		t.Error("Unlock without Lock")
	}
}
