package pglock_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// S1: the synchronous replica is cut off, and a client gives up a request whose commit waits for
// it. Then the server shows the commit, which the replica does not have. Another request for the
// same entry must not be told that it holds before the replica has it: not where the entry is in
// its name's row, nor when it is among the others. Control: a role whose commits do not wait for
// the replica is told so.
func TestHeldOnceReplicaHasIt(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	primary := private(t)
	sqlkit.Postgres(t, primary.URL(), "CREATE ROLE hasty SUPERUSER LOGIN; ALTER ROLE hasty SET synchronous_commit = local")
	ticket := func(storeURL, name string) driver.Ticket {
		s := testkit.Session(t, testkit.Open(t, storeURL), ages, nil)
		return s.Ticket(driver.Request{Name: name, ID: rand.Text(), Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()})
	}
	patient, hasty := ticket(primary.URL(), "patient"), ticket(as(primary.URL(), "hasty"), "hasty")
	sqlkit.Postgres(t, primary.URL(), "ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'")
	sqlkit.Postgres(t, primary.URL(), "SELECT pg_reload_conf()")
	stream := testkit.Proxy(t, primary.Addr)
	backends.StartPostgres(t, backends.PostgresOptions{ReplicaOf: stream.Addr()})
	testkit.Eventually(t, "the replica follows", func() bool {
		return ask[int](t, primary.URL(), "SELECT count(*)::int FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	stream.Partition()

	if v, err := hasty.Enqueue(testkit.Context(t)); err != nil || !v.Held {
		t.Fatalf("the control: %+v, %v", v, err)
	}
	for _, seen := range []string{
		"SELECT count(*)::int FROM hasp_names WHERE name = 'patient' AND h_id <> ''",
		"SELECT count(*)::int FROM hasp_entries WHERE name = 'patient'",
		"SELECT count(*)::int FROM hasp_entries WHERE name = 'patient'",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		v, err := patient.Enqueue(ctx)
		cancel()
		if err == nil {
			t.Fatalf("told %+v while the replica is cut off", v)
		}
		testkit.Eventually(t, "the server shows what was given up", func() bool { return ask[int](t, primary.URL(), seen) > 0 })
	}
	stream.Heal()
	testkit.Eventually(t, "the lock", func() bool {
		v, err := patient.Enqueue(testkit.Context(t))
		return err == nil && v.Held
	})
}
