package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
)

// strictServer is one without tables that refuses GET_LOCK. It is its own connector and connection.
type strictServer struct {
	sqldriver.Conn
	wsrep    string
	executed []string
}

func (s *strictServer) Connect(context.Context) (sqldriver.Conn, error) { return s, nil }
func (s *strictServer) Driver() sqldriver.Driver                        { return nil }
func (s *strictServer) Close() error                                    { return nil }

func (s *strictServer) QueryContext(_ context.Context, text string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	switch {
	case strings.Contains(text, "GET_LOCK"):
		return nil, &mysql.MySQLError{Number: 1105, Message: "prohibits use of GET_LOCK"}
	case strings.Contains(text, "information_schema"):
		return &oneRow{}, nil // nothing
	case strings.Contains(text, "wsrep_on"):
		return &oneRow{s.wsrep}, nil
	}
	return nil, &mysql.MySQLError{Number: errNoTable}
}

func (s *strictServer) ExecContext(_ context.Context, text string, _ []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.executed = append(s.executed, text)
	return sqldriver.RowsAffected(0), nil
}

// oneRow is the answer about a variable, which is read once.
type oneRow struct{ value string }

func (*oneRow) Columns() []string { return []string{"Variable_name", "Value"} }
func (*oneRow) Close() error      { return nil }

func (r *oneRow) Next(into []sqldriver.Value) error {
	if r.value == "" {
		return io.EOF
	}
	into[0], into[1], r.value = "wsrep_on", r.value, ""
	return nil
}

// A cluster that does not allow GET_LOCK gets its tables. A server that refuses it for another
// reason gets none.
func TestMigrateWithoutLock(t *testing.T) {
	t.Parallel()
	for wsrep, made := range map[string]int{"ON": 1, "OFF": 0} {
		server := &strictServer{wsrep: wsrep}
		s := &schema{db: sql.OpenDB(server), prefix: "p_", steps: []string{"CREATE TABLE {p}a\n//\n"}}
		_, to, err := s.migrate(t.Context())
		if to != made*oldest || len(server.executed) != made || (err == nil) != (made == 1) {
			t.Errorf("wsrep_on=%s: to version %d, %v, executed %q", wsrep, to, err, server.executed)
		}
		if refused := new(mysql.MySQLError); made == 0 && (!errors.As(err, &refused) || refused.Number != 1105) {
			t.Errorf("wsrep_on=%s: %v; want what the server has said", wsrep, err)
		}
	}
}
