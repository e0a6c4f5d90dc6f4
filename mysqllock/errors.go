package mysqllock

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
)

// The server's error numbers that mean something to us.
const (
	errTooManyConnections = 1040
	errAnotherHost        = 1130
	errSecureTransport    = 3159
	errNoDatabaseAccess   = 1044
	errAccessDenied       = 1045
	errNoDatabase         = 1049
	errKeyExists          = 1061
	errPrimaryKeyExists   = 1068
	errNoTable            = 1146
	errLockWait           = 1205
	errDeadlock           = 1213
	errProcedureExists    = 1304
	errNoProcedure        = 1305
	errHasChildren        = 1451
)

// refusals are answers that say: not done, and not for a fault of the request.
var refusals = map[uint16]string{
	errTooManyConnections: "the server has no connection left: raise max_connections, or lower the clients' connections=",
	1203:                  "the role has too many connections: raise max_user_connections, or lower the clients' connections=",
	1226:                  "the role has used up what it may: see max_user_connections and its other limits",
	1129:                  "the server blocks this host after failed connections (max_connect_errors): FLUSH HOSTS lets it in again",
	errAnotherHost:        "the server lets no role in from this host: CREATE USER or RENAME USER names the hosts",
	1698:                  "the server does not take this role by password: change how it authenticates (unix_socket, auth_socket?)",
	1820:                  "the role's password has expired: ALTER USER sets another",
	1862:                  "the role's password has expired: ALTER USER sets another",
	3118:                  "the role is locked: ALTER USER ... ACCOUNT UNLOCK",
	4151:                  "the role is locked: ALTER USER ... ACCOUNT UNLOCK",
	3032:                  "the server is in offline_mode",
	errSecureTransport:    "the server demands TLS (require_secure_transport): add tls=true to the URL",
	errNoDatabaseAccess:   "the role may not use this database",
	errAccessDenied:       "user or password is wrong, or the role may not come from here",
	errNoDatabase:         "there is no such database",
	1142:                  "the role may not do this to the table",
	1143:                  "the role may not do this to the column",
	1227:                  "the role lacks a privilege",
	1370:                  "the role may not EXECUTE the procedures",
	1021:                  "the server's disk is full",
	1114:                  "the table, or the disk that it is on, is full",
	1026:                  "the server cannot write to its disk",
	1041:                  "the server is out of memory",
	1290:                  "the server is read-only",
	1792:                  "the transaction is read-only",
	1836:                  "the server is read-only",
	3989:                  "the server is read-only",
}

func number(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}

// exists reports that what was to be made is there.
func exists(err error) bool {
	n := number(err)
	return n == errProcedureExists || n == errKeyExists || n == errPrimaryKeyExists
}

// undone reports that the server has rolled the whole statement back by itself. A lock that
// was not granted in time rolls back no more than the last step, and the procedures' own
// handler the rest.
func undone(err error) bool {
	n := number(err)
	return n == errDeadlock || n == errLockWait
}

// isMissing reports that the tables, or the procedures, are not there.
func isMissing(err error) bool {
	n := number(err)
	return n == errNoTable || n == errNoProcedure
}

// answered reports that the server has answered, and the connection is as good as before.
func answered(err error) bool { return err == nil || number(err) != 0 || errors.Is(err, sql.ErrNoRows) }

// explain gives an error of the client library the meaning it has for the core. An error
// that the server did not give says nothing about what was done.
func explain(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case pushqueue.Ended(ctx) != nil && number(err) == 0:
		return pushqueue.Ended(ctx) // what the closed connection said of it is no news
	case errors.Is(err, sqldriver.ErrBadConn), errors.Is(err, mysql.ErrInvalidConn):
		return fmt.Errorf("the connection broke: %w", err)
	}
	if why := refusals[number(err)]; why != "" {
		return fmt.Errorf("%w: %s (%w)", driver.ErrRefused, why, err)
	}
	return err
}

// errSilent ends a call that the server should have answered by itself.
var errSilent = errors.New("no answer")
