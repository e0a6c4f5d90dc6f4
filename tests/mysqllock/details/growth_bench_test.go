package mysqllock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// BenchmarkCycles locks and unlocks many times, and shows whether the server's purge keeps up: how
// large the file of the names is after a tenth of the cycles and in the end, and how many old
// versions are left. A million cycles: -benchtime=1000000x.
func BenchmarkCycles(b *testing.B) {
	server := backends.StartMariaDB(b, backends.MariaDBOptions{})
	c := client(b, sqlkit.MariaDBStore(b, server))
	db := sqlkit.MariaDBAdmin(b, server)
	testkit.BenchmarkCycles(b, c, func() float64 {
		return float64(number(b, db, "SELECT FILE_SIZE FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME = 'locks/hasp_names'")) / 1024
	})
	b.ReportMetric(float64(sqlkit.MySQLStatus(b, db, "Innodb_history_list_length")), "old-versions")
}

// BenchmarkManyNames compares a lock where a million other names were used with one where none
// were, and shows what the sweeps cost.
func BenchmarkManyNames(b *testing.B) {
	few, many := backends.StartMariaDB(b, backends.MariaDBOptions{}), backends.StartMariaDB(b, backends.MariaDBOptions{})
	without, with := client(b, sqlkit.MariaDBStore(b, few)), client(b, sqlkit.MariaDBStore(b, many))
	db := sqlkit.MariaDBAt(b, many.Addr, "locks")
	testkit.ManyNames{
		Without: without,
		With:    with,
		Fill: func() {
			sqlkit.Exec(b, db, "INSERT INTO hasp_names (name, seq) SELECT CONCAT('name ', seq), (UNIX_TIMESTAMP() - 5 * 3600) * 1000000 FROM seq_1_to_1000000")
		},
		Sweep: func(retention time.Duration) {
			sqlkit.Exec(b, db, "UPDATE hasp_store SET swept = '1970-01-01'")
			sqlkit.Exec(b, db, fmt.Sprintf("CALL hasp_sweep_2(%d)", retention.Microseconds()))
		},
		Left: func() bool { return number(b, db, "SELECT COUNT(*) FROM (SELECT 1 FROM hasp_names LIMIT 2) n") > 1 },
	}.Benchmark(b)
}
