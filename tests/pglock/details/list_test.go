package pglock_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
	"github.com/hasplock/hasp/internal/testtier"
)

// The first of a long queue are read without reading the others.
func TestListLimit(t *testing.T) {
	testtier.Long(t)
	t.Parallel()
	storeURL := sqlkit.PostgresStore(t, "prefix=limit_")
	b := testkit.Open(t, storeURL)
	t.Cleanup(func() { b.Close() })
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: 10 * slack, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	var ids []string
	for range 5 {
		ids = append(ids, rand.Text())
		ticket := s.Ticket(driver.Request{Name: "q", ID: ids[len(ids)-1], Units: driver.Whole, Capacity: driver.Whole, Since: time.Now()})
		if _, err := ticket.Enqueue(testkit.Context(t)); err != nil {
			t.Fatal(err)
		}
	}
	// One who has died stands in front, and is not listed.
	serverURL := backends.SharedPostgres(t).URL()
	sqlkit.Postgres(t, serverURL, "INSERT INTO locks.limit_sessions VALUES ('dead', 1); INSERT INTO locks.limit_entries VALUES ('q', 1, 'dead', 'x', 1, 1, '', 0, '')")
	for limit, want := range map[int]int{0: 5, 1: 1, 3: 3, 9: 5} {
		list, err := b.List(t.Context(), "q", limit)
		if err != nil || len(list) != want || list[0].ID != ids[0] || list[want-1].ID != ids[want-1] {
			t.Errorf("the first %d: %+v, %v", limit, list, err)
		}
	}
	sqlkit.Postgres(t, serverURL, `INSERT INTO locks.limit_entries SELECT 'q', seq + i, session, 'copy-' || i, units, capacity, owner, since, value
		FROM locks.limit_entries, generate_series(1, 20000) i WHERE seq = (SELECT max(seq) FROM locks.limit_entries); ANALYZE locks.limit_entries`)
	read := ask[string](t, serverURL, `WITH x AS MATERIALIZED (SELECT count(*) FROM locks.limit_list('q', 1))
		SELECT (SELECT * FROM x) || ' ' || pg_stat_get_xact_tuples_fetched('locks.limit_entries'::regclass) + pg_stat_get_xact_tuples_returned('locks.limit_entries'::regclass)`)
	var n, tuples int
	if _, err := fmt.Sscan(read, &n, &tuples); err != nil || n != 1 || tuples > 200 {
		t.Errorf("for the first one %d of 20,000 entries were read", tuples)
	}
}
