package pglock_test

import (
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// L2: who waits for a row under one prefix does not stand in the way of those who wait for the row
// of the same name under another. (Places in line were locked by name and number, and the server
// keeps such locks for the whole database: the second who waited here also waited for the first
// who waited there, and LockAll under both prefixes for itself.)
func TestLinesOfTwoPrefixes(t *testing.T) {
	t.Parallel()
	server := private(t)
	sqlkit.Postgres(t, server.URL(), sqlkit.MakeKeeper)
	store := func(prefix string) *hasp.Client {
		return client(t, sqlkit.With(server.URL(), "strategy=row", "schema=locks", "prefix="+prefix), hasp.WithTTL(calm))
	}
	here, there := store("here_"), store("there_")
	held, elsewhere := testkit.Lock(t, here, "apart"), testkit.Lock(t, there, "apart")
	last := waits(t, server.URL(), there, "apart") // the first place there, for as long as elsewhere is held
	first := waits(t, server.URL(), here, "apart") // the first place here
	second := waits(t, server.URL(), store("here_"), "apart")
	testkit.Release(t, held)
	testkit.Release(t, testkit.Granted(t, first))
	testkit.Release(t, testkit.Granted(t, second))
	testkit.Release(t, elsewhere)
	testkit.Release(t, testkit.Granted(t, last))
}
