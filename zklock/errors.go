package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// answered reports whether err (or nil) is the server's answer, so that it is known what
// was done. Everything else comes from the connection, and the request may have been
// applied.
func answered(err error) bool {
	for _, a := range []error{
		nil, zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrBadVersion,
		zk.ErrNoChildrenForEphemerals, zk.ErrAuthFailed, zk.ErrBadArguments, zk.ErrAPIError, zk.ErrUnknown,
	} {
		if err == a {
			return true
		}
	}
	return isCode(err, codeQuotaExceeded) || isCode(err, codeThrottled) || isCode(err, codeMustAuthenticate)
}

// Answers that the library has no names for. The servers have done nothing then.
const (
	codeMustAuthenticate = -124 // with enforce.auth or sessionRequireClientSASLAuth; the server ends the connection, too
	codeQuotaExceeded    = -125 // a hard quota, with enforceQuota
	codeThrottled        = -127 // too many requests are under way
)

// isCode reports whether err is one of these.
func isCode(err error, code int) bool {
	return err != nil && err.Error() == fmt.Sprintf("unknown error: %d", code)
}

// explain turns an error of the library into one of the driver's.
func explain(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrGone), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, zk.ErrSessionExpired):
		return fmt.Errorf("%s: %w: %w", op, driver.ErrGone, err)
	case errors.Is(err, zk.ErrNoAuth), errors.Is(err, zk.ErrAuthFailed):
		return fmt.Errorf("%s: %w: no permission (do user, password and the nodes' ACL fit?): %w", op, driver.ErrRefused, err)
	case errors.Is(err, zk.ErrInvalidACL):
		return fmt.Errorf("%s: %w: the server takes no such ACL; acl=creator needs a user and a password: %w", op, driver.ErrRefused, err)
	case errors.Is(err, zk.ErrNoChildrenForEphemerals):
		return fmt.Errorf("%s: %w: the lock's node belongs to a session: another client holds the name with strategy=node, or a program that does the same; "+
			"let all clients of a name use one strategy: %w", op, driver.ErrMismatch, err)
	case isCode(err, codeMustAuthenticate):
		return fmt.Errorf("%s: %w: %w: the servers demand an authentication (enforce.auth): name user and password in the URL, and have digest among enforce.auth.schemes; "+
			"hasp has no SASL, so that sessionRequireClientSASLAuth keeps it out: %w", op, driver.ErrRefused, driver.ErrInvalid, err)
	case isCode(err, codeQuotaExceeded):
		return fmt.Errorf("%s: %w: a quota of the servers is used up: %w", op, driver.ErrRefused, err)
	case errors.Is(err, zk.ErrNoServer):
		return fmt.Errorf("%s: not sent: %w", op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}

// errLeft is the error of a call that comes after Leave.
var errLeft = fmt.Errorf("%w: it has left the queue", driver.ErrGone)

// errNotQueued is the error of a call that comes before Enqueue.
var errNotQueued = fmt.Errorf("%w: it is not in the queue", driver.ErrGone)

// errNotHeld is the error of what only a holder may do.
var errNotHeld = fmt.Errorf("%w: it does not hold", driver.ErrGone)

var errNoEntry = fmt.Errorf("%w: there is no such entry", driver.ErrGone)
