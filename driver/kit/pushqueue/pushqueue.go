// Package pushqueue is the client's side of a queue that is in a store, and whose grants the store
// pushes to its clients. It implements driver.Session, but for KeepAlive and Close, and all of
// driver.Ticket. redislock's strategy=queue uses it, and strategy=table of pglock and mysqllock.
//
// It keeps the state of each ticket's entry, and settles what happens when messages and answers
// overtake each other: a grant that is pushed before the answer to Enqueue, an answer to a ticket
// that has left, an answer that was lost. The driver makes the requests (Store), hands over what is
// pushed (Session.Message, or Granted), and renews: Redis renews entry by entry, and reports those
// that are gone by Missing; the tables renew a session with all its entries, and compare by Known
// and Renewed what the session has with what the store has.
package pushqueue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Store makes the requests of one session. Its methods are called without the session's lock. E
// is the driver's part of each ticket.
type Store[E any] interface {
	// Enter makes the entry, or asks for it. After an error the store may have done it, unless
	// the error wraps ErrRefused or ErrMismatch: then the store has answered that it has not.
	Enter(ctx context.Context, t *Ticket[E], mode Mode) (Answer, error)

	// Leave removes the entry, and answers as driver.Ticket says. again: an earlier request to
	// leave was made, which may have removed it.
	Leave(ctx context.Context, t *Ticket[E], again bool) error

	// Publish replaces the value, unless the store has one with a greater number: a request
	// that the network delivers late must not take the place of a later one.
	Publish(ctx context.Context, t *Ticket[E], value []byte, number uint64) (there bool, err error)

	Downgrade(ctx context.Context, t *Ticket[E], units int64) (there bool, err error)
	Adopt(ctx context.Context, t *Ticket[E], id string, seq uint64) (Answer, error)
}

// Mode says what the store may already have of a ticket.
type Mode int

const (
	First Mode = iota // nothing
	Again             // an entry, by a request that was not answered
	Ask               // an entry that it has confirmed, and that must not be made again
)

// State is the state of an entry in the store.
type State int

const (
	Held  State = iota + 1
	Waits       // it is in the queue
	Busy        // it was not made, because it would have to wait
	Gone        // there is none, and none was made
	Dead        // the session is gone
)

// Answer is the store's answer.
type Answer struct {
	State  State
	Seq    uint64        // if it is held or waits
	Retry  time.Duration // if it waits: when to ask although nothing was pushed; 0: never
	Poll   time.Duration // if it waits and nothing is pushed: how often Wait asks; 0: never
	Holder string        // if it waits or is busy: an owner in the way, if that is known
	Place  int           // if it waits: see driver.Verdict

	Quarantine time.Duration // if it is busy: see driver.Verdict
	Number     uint64        // if it was adopted: that of its last value
}

// ErrClosed is the error of a session that was closed, and of its tickets.
var ErrClosed = fmt.Errorf("%w: the session is closed", driver.ErrGone)

// errUnexpected is for an answer without a State.
var errUnexpected = errors.New("unexpected answer")

// refused reports that the store has answered, and that it has done nothing.
func refused(err error) bool {
	return errors.Is(err, driver.ErrRefused) || errors.Is(err, driver.ErrMismatch)
}
