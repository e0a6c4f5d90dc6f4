package pglock_test

import (
	"testing"

	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit/sqlkit"
)

// One of the tests that look inside is for a pooler, too.
func TestInside(t *testing.T) {
	t.Parallel()
	server := backends.StartPostgres(t, backends.PostgresOptions{})
	pooler := backends.StartPgBouncer(t, server, "session")
	sqlkit.Inside(t, "pglock", server.URL(), ".", "behind a pooler: false")
	sqlkit.Inside(t, "pglock", pooler.URL(), "TestReleaseBehindPooler", "behind a pooler: true")
}
