// Package connlock is the client's side of locks that a connection holds: those of a server that
// keeps a lock for as long as it sees its connection, such as pg_advisory_lock of PostgreSQL and
// GET_LOCK of MySQL. It implements driver.Session and driver.Ticket: each lock that is held or
// waited for has a separate connection. pglock's strategy advisory and mysqllock's getlock use it.
//
// It keeps the state of each ticket, renews by asking for a sign of life on every connection that
// holds, reports the end of such a connection when it happens, and has the holder recorded. The
// driver makes the connections and the requests (Store).
package connlock

import (
	"context"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Store makes the connections, and the requests on them. C is a connection, the ticket's from Take
// until Keep, Drop, Failed or Release. All but Check may be called by several goroutines at once,
// but for one connection they are called one after the other.
type Store[C any] interface {
	// Check refuses what the strategy cannot serve. It does no I/O.
	Check(r driver.Request) error

	// Take returns a connection that holds nothing, an idle or a new one.
	Take(ctx context.Context) (C, error)

	// Keep takes a connection back that holds nothing.
	Keep(c C)

	// Drop ends a connection, and with it what it holds.
	Drop(c C)

	// Try takes the lock if it is free. It may answer that it is not without asking, unless the
	// request is not to wait.
	Try(ctx context.Context, c C, r driver.Request) (Grant, error)

	// Wait waits for the lock. It calls taken as soon as the lock is known to be taken. The grant
	// holds unless there is an error.
	Wait(ctx context.Context, c C, r driver.Request, taken func()) (Grant, error)

	// Failed is called after an error of Try or Wait. It ends the connection, with all that the
	// server may have done for it, and returns what the error means to the core. waited: taken had
	// been called.
	Failed(ctx context.Context, c C, r driver.Request, waited bool, err error) error

	// Release gives the lock back, and keeps the connection or ends it. nil says that it was held,
	// ErrGone that it was not. After any other error it may be held for as long as the server sees
	// the connection, and the next Leave calls Confirm.
	Release(ctx context.Context, c C, r driver.Request) error

	// Confirm makes sure that a connection which was ended holds nothing, and answers ErrGone then.
	Confirm(ctx context.Context, c C, r driver.Request) error

	// Ping has the server answer. broken: the connection is of no use any more.
	Ping(ctx context.Context, c C) (broken bool, err error)

	// Watch waits, while nothing is asked on it, until the connection has ended, and returns why, or
	// until ctx ends. It must return then, and leave the connection as it was.
	Watch(ctx context.Context, c C) error

	// Recorder returns what records the holder at the server, for those who ask. It is called when
	// the lock has been held for Brief. What it returns is called beside the requests on the
	// connection, and again after an error but ErrRefused. nil: nothing is to be recorded.
	Recorder(c C, r driver.Request, g Grant) func(ctx context.Context) error
}

// Grant is the answer to a request for the lock.
type Grant struct {
	Held   bool
	Token  uint64
	Holder string // if it is not held: the owner in the way, if that is known
}

// Brief is for how long a lock is held before its holder is recorded at the server and its
// connection is watched: most are released sooner, and starting and interrupting a watch costs a
// quarter of a lock and unlock. A loss is to be told within 50 ms.
const Brief = 20 * time.Millisecond

// For how long a holder trusts its lock without an answer from the server, for any TTL. The most is
// shorter than the silence after which the server, or a firewall, ends a connection, so that a
// holder which is cut off has stopped trusting when the server grants to the next. The least spares
// a process that was stopped for a moment the loss of a lock that the server keeps for it.
const (
	leastGranted = 6 * time.Second
	mostGranted  = 12 * time.Second
)

// recordMost is how long Recorded waits for the record of a holder. Other programs make none.
const recordMost = time.Second

// Recorded repeats a look at the holders until each is recorded, or no record can be expected.
func Recorded(ctx context.Context, look func() (unrecorded bool, err error)) error {
	for began := time.Now(); ; {
		unrecorded, err := look()
		if err != nil || !unrecorded || time.Since(began) > recordMost {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(Brief / 2):
		}
	}
}

// errClosed is the error of a session that was closed, and of its tickets.
var errClosed = fmt.Errorf("%w: the session is closed", driver.ErrGone)
