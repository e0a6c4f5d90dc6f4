package pglock_test

import (
	"database/sql"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/history"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
	"github.com/hasplock/hasp/tests/internal/linear"
)

// S1, T1: the primary crashes under load, and its synchronous replica takes over, again and again.
// Each time the replica has been cut off for a moment before: then the primary answers no commit,
// and what clients have it cancel meanwhile is visible there and not at the replica. No two hold,
// and no token is lower than one before. With the controls no commit waits for the replica.
func TestFailovers(t *testing.T) {
	testtier.Long(t)
	t.Run("table", func(t *testing.T) {
		h := failedOver(t, crashes(t), true, "", "", 6*time.Second, time.Second)
		linear.Require(t, h, linear.Options{Fencing: true})
	})
	t.Run("advisory", func(t *testing.T) {
		h := failedOver(t, crashes(t), true, advisory, ahead, 6*time.Second, time.Second)
		linear.Require(t, h, linear.Options{Fencing: true})
	})
	t.Run("control", func(t *testing.T) {
		for range 10 { // who holds at that moment is left to chance
			// No holder renews before it has released: a renewal would tell it.
			h := failedOver(t, 1, false, "", "", time.Minute, 10*time.Second)
			if len(history.Exclusion(h)) > 0 {
				return
			}
		}
		t.Error("a replica that has not every lock was not caught")
	})
	t.Run("control of advisory", func(t *testing.T) {
		for range 10 { // a busy machine may reserve no tokens while the replica is cut off
			h := failedOver(t, 1, false, advisory, ahead, 6*time.Second, time.Second)
			if len(history.Check(h, history.Options{Fencing: true})) > 0 {
				return
			}
		}
		t.Error("a replica that does not know where the tokens end was not caught")
	})
}

// failedOver has clients lock while one server takes over from another, and returns what they were
// told. They know one address, which moves.
func failedOver(t *testing.T, times int, synchronous bool, params, prepare string, ttl, long time.Duration) history.History {
	primary := private(t)
	address, throughURL := testkit.Behind(t, primary.URL())
	storeURL := sqlkit.With(throughURL, "connections=2", params)
	makeTables(t, primary, storeURL, prepare)
	if synchronous {
		// The copies of this server have its settings. A base backup is no replica, and has another
		// name.
		sqlkit.Postgres(t, primary.URL(), "ALTER SYSTEM SET synchronous_standby_names = 'walreceiver'")
		sqlkit.Postgres(t, primary.URL(), "SELECT pg_reload_conf()")
	}
	stream, replica := replicaOf(t, primary)
	if !synchronous {
		stream.Partition() // from the beginning, so that it has none of the locks
	}
	stop := load(t, storeURL, ttl, long)
	for range times {
		time.Sleep(200*time.Millisecond + rand.N(600*time.Millisecond))
		stream.Partition()
		time.Sleep(300 * time.Millisecond)
		if err := primary.Kill(); err != nil {
			t.Fatal(err)
		}
		sqlkit.Postgres(t, replica.URL(), "SELECT pg_promote(true)")
		if err := address.Redirect(replica.Addr); err != nil {
			t.Fatal(err)
		}
		address.Reset()
		primary = replica
		stream, replica = replicaOf(t, primary)
	}
	return stop()
}

// replicaOf returns a replica that has all that was committed, and the network between the two.
func replicaOf(t *testing.T, primary *backends.Postgres) (*faultnet.Proxy, *backends.Postgres) {
	t.Helper()
	stream := testkit.Proxy(t, primary.Addr)
	replica := backends.StartPostgres(t, backends.PostgresOptions{ReplicaOf: stream.Addr()})
	db, err := sql.Open("pgx", primary.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	testkit.Eventually(t, "the replica follows", func() bool {
		var n int
		err := db.QueryRow("SELECT count(*) FROM pg_stat_replication WHERE application_name = 'walreceiver' AND state = 'streaming'").Scan(&n)
		return err == nil && n == 1
	})
	return stream, replica
}
