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

// Two backends know whether they are one store, by any address, library or role; and distinguish
// it from every other.
func TestIdentity(t *testing.T) {
	t.Parallel()
	server := private(t)
	for _, stmt := range []string{"CREATE ROLE humble LOGIN", "CREATE DATABASE other", "CREATE DATABASE copy TEMPLATE other"} {
		sqlkit.Postgres(t, server.URL(), stmt)
	}
	_, through := testkit.Behind(t, server.URL())
	id := func(b driver.Backend) string {
		t.Helper()
		defer b.Close()
		text, err := b.(driver.Identifier).Identity(t.Context())
		if err != nil || text == "" || len(text) > 200 {
			t.Fatalf("%q, %v", text, err)
		}
		return text
	}
	kinds := []string{"", "schema=s", "prefix=p_", "strategy=advisory", "strategy=advisory&key=integer"}
	seen := map[string]string{}
	for _, database := range []string{"postgres", "other", "copy"} {
		for _, kind := range kinds {
			at := func(serverURL string) string {
				return replaceDatabase(t, sqlkit.With(serverURL, kind), database)
			}
			text := id(testkit.Open(t, at(server.URL())))
			if before := seen[text]; before != "" {
				t.Errorf("%s and %s %s are both %s", before, database, kind, text)
			}
			seen[text] = database + " " + kind
			for how, same := range map[string]string{
				"localhost": replaceHost(t, at(server.URL()), "localhost"),
				"proxy":     at(through),
				"role":      at(as(server.URL(), "humble")),
			} {
				if got := id(testkit.Open(t, same)); got != text {
					t.Errorf("%s %s by %s is %s, and directly %s", database, kind, how, got, text)
				}
			}
		}
	}
	want := id(testkit.Open(t, server.URL()))
	if got := id(testkit.Open(t, backends.StartPgBouncer(t, server, "transaction").URL())); got != want {
		t.Errorf("by a pooler: %s, want %s", got, want)
	}
	if got := id(overSQL(t, server.URL())); got != want {
		t.Errorf("by database/sql: %s, want %s", got, want)
	}
	// What has no part in whether locks contend has none in the name.
	for a, b := range map[string]string{
		"strategy=advisory":           "strategy=advisory&schema=s&prefix=p_",
		"strategy=advisory&fence=off": "strategy=advisory",
		"connections=3":               "retention=2h",
	} {
		if x, y := id(testkit.Open(t, sqlkit.With(server.URL(), a))), id(testkit.Open(t, sqlkit.With(server.URL(), b))); x != y {
			t.Errorf("%s is %s, and %s is %s", a, x, b, y)
		}
	}
	if got := id(testkit.Open(t, private(t).URL())); got == want {
		t.Error("another server has the same name")
	}
}
