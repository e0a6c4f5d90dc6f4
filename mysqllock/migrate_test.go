package mysqllock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// The steps of a newer program: one that ends in the middle, since MySQL commits each statement
// by itself, and the same without the fault.
const (
	interrupted = "CREATE TABLE IF NOT EXISTS {p}added (a INT)\n//\nCALL {p}is_missing()\n//\nINSERT IGNORE INTO {p}schema (version) VALUES (3)\n//\n"
	repaired    = "CREATE TABLE IF NOT EXISTS {p}added (a INT)\n//\nINSERT IGNORE INTO {p}schema (version) VALUES (3)\n//\n"
)

// A migration that ends in the middle leaves the tables at the version before: clients of that
// version go on, and the migration is applied anew as a whole. After it clients of the version
// before that are at work go on, and those that come later are refused.
func TestInterruptedMigration(t *testing.T) {
	t.Parallel()
	const prefix = "prefix=migrated_"
	ctx := limited(t)
	client := func(params string) *hasp.Client {
		t.Helper()
		c := must[*hasp.Client](t)(hasp.Open(ctx, serverURL(t, params), hasp.WithTTL(20*time.Second)))
		t.Cleanup(func() { c.Close() })
		return c
	}
	use := func(c *hasp.Client) {
		t.Helper()
		if err := c.Do(ctx, "a", func(context.Context) error { return nil }); err != nil {
			t.Errorf("a client of the version before: %v", err)
		}
	}
	c := client(prefix)
	held := must[*hasp.Lease](t)(c.Mutex("held").Lock(ctx))
	latest := oldest - 1 + len(migrations)
	migrate := func(step string) (from, to int, err error) {
		b := openHere(t, prefix).(*table)
		b.schema.steps = append(slices.Clone(migrations), step)
		return b.Migrate(ctx)
	}
	if _, _, err := migrate(interrupted); err == nil {
		t.Fatal("a migration that calls what is missing has succeeded")
	}
	var version, added int
	s := openHere(t, prefix).(*table)
	if err := row(ctx, s.work, s.named("SELECT (SELECT MAX(version) FROM {p}schema), (SELECT COUNT(*) FROM {p}added)"), &version, &added); err != nil {
		t.Fatal(err)
	}
	if version != latest || added != 0 {
		t.Errorf("version %d after it ended in the middle", version)
	}
	use(client(prefix))
	if from, to, err := migrate(repaired); from != latest || to != latest+1 || err != nil {
		t.Errorf("applied anew: from %d to %d, %v", from, to, err)
	}
	if err := held.Release(ctx); err != nil {
		t.Error(err)
	}
	use(c)
	for _, migrate := range []string{"true", "false"} {
		_, err := client(prefix + "&migrate=" + migrate).Mutex("a").Lock(ctx)
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "of a newer hasp, and this program knows format") {
			t.Errorf("a program of the version before, migrate=%s: %v", migrate, err)
		}
	}
}
