package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/pushqueue"
)

// sqlState returns the SQLSTATE of the server's answer, or "" if the error is something
// else: a broken connection, an ended context. Asked of an interface and not of pgx, since
// a *sql.DB may speak through another library.
func sqlState(err error) string {
	var s interface{ SQLState() string }
	if errors.As(err, &s) {
		return s.SQLState()
	}
	return ""
}

// The answers that decide what happens next.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	undefinedTable       = "42P01"
	undefinedFunction    = "42883"
	undefinedSchema      = "3F000"
	lockNotAvailable     = "55P03"
	queryCanceled        = "57014"
	protocolViolation    = "08P01"

	aboveReadCommitted = "HASP1" // raised by our functions
	foreignOwner       = "HASP2" // and by our migration
)

// rolledBack reports an answer after which nothing has happened and the same request may
// succeed at once: the server undid it in favour of another transaction.
func rolledBack(err error) bool {
	s := sqlState(err)
	return s == serializationFailure || s == deadlockDetected
}

// endedBefore reports that the server had ended the connection (terminated, shut down)
// before it read the request: what the connection held was lost then.
func endedBefore(err error) bool {
	return strings.HasPrefix(sqlState(err), "57P") || pgconn.SafeToRetry(err)
}

// noSchema reports that our tables or functions are not there.
func noSchema(err error) bool {
	s := sqlState(err)
	return s == undefinedTable || s == undefinedFunction || s == undefinedSchema
}

// explain turns the server's answers into what the contract knows. Everything that is not
// listed stays what it is: unknown, and the core asks again.
func explain(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	state := sqlState(err)
	if ended := pushqueue.Ended(ctx); ended != nil && (state == "" || state == queryCanceled) {
		return ended // what broke because of it is not the news
	}
	switch state {
	case "28000", "28P01", "3D000":
		return fmt.Errorf("%w (%w): the server does not let us in; check user, password and database: %w", driver.ErrRefused, driver.ErrInvalid, err)
	case "42501":
		return fmt.Errorf("%w (%w): the role may not use hasp's tables; an administrator runs `hasp migrate` or what `hasp migrate --print` prints, with the grants at its end: %w", driver.ErrRefused, driver.ErrInvalid, err)
	case undefinedTable, undefinedFunction, undefinedSchema:
		return fmt.Errorf("hasp's tables are not there (dropped?); run `hasp migrate`: %w", err)
	case "22021", "22P05":
		return fmt.Errorf("%w: the database's encoding cannot store this name or owner; a UTF8 database can: %w", driver.ErrUnsupported, err)
	case "25006":
		return fmt.Errorf("%w: the server is read-only, a replica perhaps: %w", driver.ErrRefused, err)
	case "53100", "53200", "53300": // disk full, out of memory, no connection left
		return fmt.Errorf("%w: %w", driver.ErrRefused, err)
	}
	return err
}
