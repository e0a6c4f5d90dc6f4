package zklock

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp/driver"
)

// call makes one request by a function of the client library, which blocks until there is
// an answer, the connection breaks or the library is closed. It returns with ctx or with
// the session; the request goes on then, and fn must look after its late result itself.
//
// It waits for a connection first: a request that the library queues while it has none
// would be sent long after its caller has gone.
func call[T any](ctx context.Context, c *conn, fn func() (T, error)) (T, error) {
	if err := c.connected(ctx); err != nil {
		var none T
		return none, err
	}
	return launch(ctx, c, fn)
}

// launch is call for those who have seen the connection standing: fn does run.
func launch[T any](ctx context.Context, c *conn, fn func() (T, error)) (T, error) {
	var none T
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1) // one slot: nobody may be waiting any more
	go func() {
		v, err := fn()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		if over := c.over(); r.err != nil && over != nil {
			return none, over // what the library says then is only how it was closed
		}
		return r.v, endedFirst(ctx, r.err)
	case <-ctx.Done():
		return none, ctx.Err()
	case <-c.ended:
		return none, c.over()
	}
}

// endedFirst is err, or the end of ctx where that is the news: a connection broke, but the
// caller has given up meanwhile.
func endedFirst(ctx context.Context, err error) error {
	if ctx.Err() != nil && !answered(err) {
		return ctx.Err()
	}
	return err
}

// connected waits for a connection.
func (c *conn) connected(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.over(); err != nil {
		return err
	}
	select {
	case <-c.standing():
		return nil
	case <-c.ended:
		return c.over()
	case <-ctx.Done():
		if _, last := c.dial.tried(); last != nil {
			return fmt.Errorf("%w (no connection: %w)", ctx.Err(), last)
		}
		return ctx.Err()
	}
}

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
	return false
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
	case errors.Is(err, zk.ErrNoServer):
		return fmt.Errorf("%s: not sent: %w", op, err)
	}
	return fmt.Errorf("%s: %w", op, err)
}
