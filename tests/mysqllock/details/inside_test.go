package mysqllock_test

import (
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// TestInterruptedMigration leaves a database that is migrated: so the server is for this test alone.
func TestInside(t *testing.T) {
	t.Parallel()
	server := backends.StartMariaDB(t, backends.MariaDBOptions{})
	sqlkit.Inside(t, "mysqllock", sqlkit.MariaDBStore(t, server), ".", "--- PASS: TestInterruptedMigration")
}
