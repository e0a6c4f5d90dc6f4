package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
)

// A standby refuses, and is no wrong setting: it may be promoted at any moment, and who waits tries
// again.
func TestStandbyRefuses(t *testing.T) {
	t.Parallel()
	primary := private(t)
	standby := backends.StartPostgres(t, backends.PostgresOptions{ReplicaOf: primary.Addr})
	c, err := hasp.Open(testkit.Context(t), standby.URL())
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, hasp.ErrRefused) || errors.Is(err, hasp.ErrInvalid) || !strings.Contains(err.Error(), "name the primary") {
		t.Errorf("a standby: %v", err)
	}
}

// A pool in session mode that resets nothing gives one client's prepared statements to the next. The
// error says what to set there.
func TestPoolWithoutReset(t *testing.T) {
	t.Parallel()
	pool := backends.StartPgBouncer(t, private(t), "session")
	cfg, err := pgx.ParseConfig(pool.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Database, cfg.DefaultQueryExecMode = "pgbouncer", pgx.QueryExecModeSimpleProtocol
	console, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer console.Close(context.Background())
	if _, err := console.Exec(t.Context(), "SET server_reset_query = ''"); err != nil {
		t.Fatal(err)
	}
	var said error
	testkit.Eventually(t, "a statement of another client's", func() bool {
		c, err := hasp.Open(testkit.Context(t), pool.URL())
		if err == nil {
			_, err = c.Mutex("a").TryLock(testkit.Context(t))
			c.Close()
		}
		said = err
		return err != nil && !errors.Is(err, hasp.ErrBusy)
	})
	if !errors.Is(said, hasp.ErrRefused) || !strings.Contains(said.Error(), "server_reset_query = DISCARD ALL") {
		t.Errorf("told: %v", said)
	}
}
