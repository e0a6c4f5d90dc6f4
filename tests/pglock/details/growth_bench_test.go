package pglock_test

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// BenchmarkCycles locks and unlocks many times, and shows whether vacuum keeps up: how many of the
// updates wrote no index, and how large the table of names is after a tenth of the cycles and in
// the end. Autovacuum has the server's defaults. A million cycles: -benchtime=1000000x.
func BenchmarkCycles(b *testing.B) {
	server := private(b)
	c := client(b, server.URL())
	testkit.BenchmarkCycles(b, c, func() float64 {
		return float64(ask[int64](b, server.URL(), "SELECT pg_total_relation_size('hasp_names')")) / 1024
	})
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
	testkit.Eventually(b, "the client's processes have ended, and told their counts", func() bool {
		return ask[int](b, server.URL(), "SELECT count(*)::int FROM pg_stat_activity WHERE backend_type = 'client backend'") == 1
	})
	hot := ask[float64](b, server.URL(), "SELECT 100 * n_tup_hot_upd::float8 / n_tup_upd FROM pg_stat_user_tables WHERE relname = 'hasp_names'")
	b.ReportMetric(hot, "hot-%")
}

// BenchmarkManyNames compares a lock where a million other names were used with one where none
// were, and shows what the sweeps cost.
func BenchmarkManyNames(b *testing.B) {
	few, many := private(b), private(b)
	testkit.ManyNames{
		Without: client(b, few.URL()),
		With:    client(b, many.URL()),
		Fill: func() {
			sqlkit.Postgres(b, many.URL(), "INSERT INTO hasp_names (name, seq, used) SELECT 'name ' || i, hasp_now(), hasp_now() / 3600000000 - 5 FROM generate_series(1, 1000000) i; ANALYZE hasp_names")
		},
		Sweep: func(retention time.Duration) {
			sqlkit.Postgres(b, many.URL(), "UPDATE hasp_schema SET swept = 0")
			ask[bool](b, many.URL(), "SELECT hasp_tidy($1::bigint)", retention.Microseconds())
		},
		Left: func() bool {
			return ask[int](b, many.URL(), "SELECT count(*)::int FROM (SELECT FROM hasp_names LIMIT 2) n") > 1
		},
	}.Benchmark(b)
}
