package pglock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/testkit"
)

// BenchmarkHandOver measures the time from the beginning of a release to the grant of the next
// client: by itself, beside sessions that wait for nothing, and beside an application's own
// listeners, on another channel. The three take turns, so that a busy machine is so for each.
func BenchmarkHandOver(b *testing.B) {
	const others = 500
	server := private(b, "max_connections = 1200")
	two := []*hasp.Client{client(b, server.URL(), hasp.WithTTL(ages)), client(b, apart(server.URL(), "other"), hasp.WithTTL(ages))}
	cases := []struct {
		name  string
		begin func() (end func())
		took  []time.Duration
	}{
		{name: "alone", begin: func() func() { return func() {} }},
		{name: "idle", begin: func() func() { return idleSessions(b, server.URL(), others) }},
		{name: "listeners", begin: func() func() { return listeners(b, server.URL(), others) }},
	}
	const rounds, most = 2, 50
	for range rounds {
		for i := range cases {
			end := cases[i].begin()
			held := testkit.Lock(b, two[0], "popular")
			for k := range most {
				next := testkit.Queued(b, two[(k+1)%2], "popular")
				began := time.Now()
				testkit.Release(b, held)
				held = testkit.Granted(b, next)
				cases[i].took = append(cases[i].took, time.Since(began))
			}
			testkit.Release(b, held)
			end()
		}
	}
	for _, c := range cases {
		slices.Sort(c.took)
		b.ReportMetric(float64(c.took[len(c.took)/2].Microseconds()), c.name+"-us")
	}
	b.ReportMetric(0, "ns/op")
}

// idleSessions opens sessions that have nothing.
func idleSessions(b *testing.B, storeURL string, n int) (end func()) {
	backend := testkit.Open(b, apart(storeURL, "idle"))
	var all []interface{ Close(context.Context) error }
	for range n {
		all = append(all, testkit.Session(b, backend, ages, nil))
	}
	return func() {
		for _, s := range all {
			_ = s.Close(context.Background())
		}
		backend.Close()
	}
}

// listeners opens connections that listen.
func listeners(b *testing.B, serverURL string, n int) (end func()) {
	var all []*pgx.Conn
	for range n {
		c, err := pgx.Connect(b.Context(), serverURL)
		if err == nil {
			_, err = c.Exec(b.Context(), "LISTEN another")
		}
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, c)
	}
	return func() {
		for _, c := range all {
			c.Close(context.Background())
		}
	}
}
