package mysqllock

import (
	"database/sql"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
)

// Two look at the same moment who holds a row that is free: neither takes the other for the holder. One of the looks is a
// transaction here, and lasts.
func TestLooksAreNoHolders(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	s := boundTo(t, "strategy=row")
	ticket := s.Ticket(testkit.Request("free-row"))
	testkit.Held(t, ticket)
	if err := ticket.Leave(ctx); err != nil {
		t.Fatal(err)
	}
	c := testkit.Must[*sql.Conn](t)(s.bound.kept.Conn(ctx))
	defer discard(c)
	for _, text := range []string{"START TRANSACTION", s.bound.named(looksAt, "free-row")} {
		if _, err := run(ctx, c, text); err != nil {
			t.Fatal(err)
		}
	}
	if list, err := s.bound.List(ctx, "free-row", 0); err != nil || len(list) > 0 {
		t.Errorf("a free lock: %+v, %v", list, err)
	}
	// What a holder has does show.
	if _, err := run(ctx, c, s.bound.named("SELECT 1 FROM {p}rows WHERE name = ? FOR UPDATE", "free-row")); err != nil {
		t.Fatal(err)
	}
	if list, err := s.bound.List(ctx, "free-row", 0); err != nil || len(list) != 1 {
		t.Errorf("a lock that is held: %+v, %v", list, err)
	}
}
