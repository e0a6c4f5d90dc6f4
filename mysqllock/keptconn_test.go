package mysqllock

import (
	"database/sql"
	"testing"

	"github.com/hasplock/hasp/internal/testkit"
)

// A renewal whose connection had ended before, without its knowing, is sent on another. A departure
// on that connection was not sent.
func TestKeptConnThatWasClosed(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	s := begin(ctx, t, openHere(t, "", ""))
	if err := s.renewal.conn.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.KeepAlive(ctx); err != nil {
		t.Errorf("renewed: %v", err)
	}
	if err := s.renewal.conn.Close(); err != nil {
		t.Fatal(err)
	}
	tried, err := s.renewal.doNow(func(c *sql.Conn) (bool, error) {
		_, err := run(ctx, c, "SELECT 1")
		return true, err
	})
	if tried || err == nil {
		t.Errorf("tried %t, %v; want that nothing was sent", tried, err)
	}
}
