package pglock

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
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
	idleInTransaction    = "25P03"
	undefinedTable       = "42P01"
	undefinedFunction    = "42883"
	undefinedSchema      = "3F000"
	duplicateFunction    = "42723"
	invalidFunction      = "42P13"
	lockNotAvailable     = "55P03"
	queryCanceled        = "57014"
	rightMissing         = "42501"
	authorization        = "28000"
	tooManyConnections   = "53300"
	protocolViolation    = "08P01"

	aboveReadCommitted = "HASP1" // raised by our functions
	foreignOwner       = "HASP2" // and by our migration
)

// rolledBack reports an answer after which nothing has happened and the same request may
// succeed at once: the server undid it in favour of another transaction, or since this client stood
// still in it (begin).
func rolledBack(err error) bool {
	s := sqlState(err)
	return s == serializationFailure || s == deadlockDetected || s == idleInTransaction
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
	if failed := new(pgconn.ConnectError); errors.As(err, &failed) {
		return refused(err, failed.Config)
	}
	switch state {
	case rightMissing:
		if strings.Contains(err.Error(), "row-level security") {
			return fmt.Errorf("%w: %w", errRowSecurity, err)
		}
		return fmt.Errorf("%w (%w): this role may not use hasp's tables; %s: %w", driver.ErrRefused, driver.ErrInvalid, grantCure, err)
	case undefinedTable, undefinedFunction, undefinedSchema:
		return fmt.Errorf("hasp's tables are not there (dropped?); run `hasp migrate`: %w", err)
	case "42P05", "26000":
		return fmt.Errorf("%w: a prepared statement of another client is on our connection, or ours is on another's: a pool in between hands connections on as they are; set server_reset_query = DISCARD ALL in a PgBouncer in session mode: %w", driver.ErrRefused, err)
	case "22021", "22P05":
		return fmt.Errorf("%w: the database's encoding cannot store this name or owner; a UTF8 database can: %w", driver.ErrUnsupported, err)
	case "25006":
		return fmt.Errorf("%w: the server is read-only, a replica perhaps: %w", driver.ErrRefused, err)
	case "53100", "53200", tooManyConnections: // disk full, out of memory, no connection left
		return fmt.Errorf("%w: %w", driver.ErrRefused, err)
	}
	return err
}

// grantCure is for a role without rights.
const grantCure = "the owner of the database runs `hasp migrate --grant ROLE` with this role, or reviews and runs what `hasp migrate --print` prints, with the grants at its end"

// errRowSecurity is for tables that this role sees through a policy: what it hides would count as
// free.
var errRowSecurity = fmt.Errorf("%w (%w): row level security hides hasp's tables from this role; their owner runs ALTER TABLE ... DISABLE ROW LEVEL SECURITY for each, or gives the role BYPASSRLS",
	driver.ErrRefused, driver.ErrInvalid)

// wordless is the cure of two of the refusals.
const wordless = "the server ended the connection without a word: it may want TLS from the first byte, be no PostgreSQL server, or a proxy with nothing behind it"

// refusals are the answers to a connection that is being made, with what to do; the first that fits
// counts. words are the server's, or where there is no state pgx's, which has no sentinel for them
// (TestRefusals holds them).
var refusals = []struct {
	state, words string // "": any
	passes       bool   // by itself, perhaps
	cure         string
}{
	{"28P01", "", false, "the server does not let us in: check user and password (in the URL, PGPASSWORD or ~/.pgpass)"},
	{authorization, "no encryption", false, "the server lets us in by TLS only: add sslmode=verify-full to the URL; if that is so already, check user, database and pg_hba.conf"},
	{authorization, "certificate", false, "the server wants a client's certificate: add sslcert=FILE and sslkey=FILE to the URL"},
	{authorization, "", false, "the server does not let us in: check user and database, and that its pg_hba.conf has a line for both and this host"},
	{"3D000", "", false, "there is no such database: check the end of the URL, or create it"},
	{rightMissing, "", false, "this role may not connect to the database: GRANT CONNECT ON DATABASE ... TO the role"},
	{"55000", "", false, "the database takes no connections: ALTER DATABASE ... ALLOW_CONNECTIONS true, or another database"},
	{tooManyConnections, "", true, "no connection is left at the server, or in the limit of the role or the database: raise max_connections or that limit, lower `connections`, or share a pool"},
	{"57P03", "", true, "the server is starting, stopping or recovering: it lets us in when it is done"},
	{protocolViolation, "", true, "a pool before the server refuses us: check its databases, users and ignore_startup_parameters"},
	{"", "server refused TLS connection", false, "the server has no TLS, or is no PostgreSQL: switch it on there (ssl = on), or add sslmode=disable to the URL, and everything travels in plaintext"},
	{"", "received unexpected message", false, "this is no PostgreSQL server: check host and port"},
	{"", "connection reset", true, wordless},
	{"", "unexpected EOF", true, wordless},
	{"", "connection refused", true, "no server listens there: check host and port, and that it runs"},
	{"", "no such host", true, "check the host's name"},
	{"", "timeout", true, "no answer in time: check host and port, that they are a PostgreSQL server's, and the network in between"},
}

// refused says what to do about the end of an attempt to connect.
func refused(err error, to *pgconn.Config) error {
	var unknown x509.UnknownAuthorityError
	if errors.As(err, &unknown) {
		return fmt.Errorf("%w: add sslrootcert=FILE with the certificate that has signed the server's: %w", driver.ErrInvalid, err)
	}
	text, state := err.Error(), sqlState(err)
	for _, r := range refusals {
		switch {
		case r.state != state || !strings.Contains(text, r.words):
		case state == tooManyConnections:
			return fmt.Errorf("%w: %s: %w", driver.ErrRefused, r.cure, err)
		case r.passes: // the core asks again
			return fmt.Errorf("%s: %w", r.cure, err)
		case state == "": // pgx's words say no more, and format an error that there is not
			return fmt.Errorf("%w (%w): %s: %s, port %d", driver.ErrRefused, driver.ErrInvalid, r.cure, to.Host, to.Port)
		default:
			return fmt.Errorf("%w (%w): %s: %s", driver.ErrRefused, driver.ErrInvalid, r.cure, text)
		}
	}
	return err
}
