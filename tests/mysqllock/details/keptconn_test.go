package mysqllock_test

import (
	"testing"

	"github.com/hasplock/hasp/internal/faultnet"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// A renewal whose connection has ended before, without its knowing, since a sweep after the last one
// was lost, is sent on another. So is a departure, of which nothing was sent on that connection.
func TestKeptConnThatWasClosed(t *testing.T) {
	t.Parallel()
	storeURL, db := prefixed(t, "kept_")
	p, behind := testkit.Behind(t, storeURL)
	s := queuer(t, behind)
	k := enqueue(t, s, "a", true)
	enqueue(t, s, "a", false) // the entry is not in the row of its name, which has another way to leave
	ended := func() {
		t.Helper()
		sqlkit.Exec(t, db, "UPDATE kept_store SET swept = '1970-01-01'")
		cut := p.Lose(faultnet.Up, 1, faultnet.Contains("sweep_2"))
		if _, err := s.KeepAlive(ctx(t)); err != nil {
			t.Fatalf("renewed: %v", err)
		}
		testkit.Await(t, "the loss of the sweep", cut)
	}
	ended()
	if _, err := s.KeepAlive(ctx(t)); err != nil {
		t.Errorf("renewed on another connection: %v", err)
	}
	ended()
	if err := k.Leave(ctx(t)); err != nil {
		t.Errorf("released on another connection: %v", err)
	}
}
