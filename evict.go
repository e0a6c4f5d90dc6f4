package hasp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Evict removes an entry from a queue, for operators: id is the entry's id as Inspect shows it.
// If it held, the next in the queue gets the lock with a higher fencing token, and the old
// holder is told as soon as its store can tell it, or at its next renewal. Until then it
// believes that it holds: exclusion is broken for that long, for a resource that does not
// check tokens. Ask first if there is time (see [AskHolder]).
//
// why is kept in the store, with who we are and when, where the store can do that: see
// [Client.LastEviction]. It is at most 1 KB of UTF-8 and may be empty.
//
// The error wraps ErrNotFound if there is no such entry, and ErrUnsupported where the store
// cannot take a lock away.
func (c *Client) Evict(ctx context.Context, name, id, why string) error {
	err := c.evict(ctx, name, id, why)
	if err != nil {
		return c.wrap(ctx, "evict "+id+" from", name, err)
	}
	return nil
}

func (c *Client) evict(ctx context.Context, name, id, why string) error {
	e, ok := c.backend.(driver.Evicter)
	switch {
	case ctx == nil:
		return errNilContext
	case id == "":
		return fmt.Errorf("%w: the id of the entry is empty", ErrInvalid)
	case c.isClosed():
		return ErrClosed
	case !ok:
		return fmt.Errorf("%w: it cannot remove another client's entry", ErrUnsupported)
	}
	if err := errors.Join(driver.CheckName(name), checkNote(why)); err != nil {
		return err
	}
	// By the writer's clock, for people.
	note, err := json.Marshal(Eviction{ID: id, By: c.cfg.owner, Why: why, At: time.Now()})
	if err == nil {
		err = e.Evict(ctx, name, id, string(note))
	}
	if errors.Is(err, driver.ErrGone) {
		return fmt.Errorf("%w: there is no such entry (any more)", ErrNotFound)
	}
	return err
}

// Eviction is the store's record of an Evict: what its author wrote, for people.
type Eviction struct {
	ID  string    `json:"id"` // of the entry that was removed
	By  Owner     `json:"by"`
	Why string    `json:"why,omitempty"`
	At  time.Time `json:"at"` // by the clock of who did it
}

// LastEviction tells who last took a lock of this name away with [Client.Evict], and why. It
// is nil if no operator did, or if the store has forgotten the name since. The error wraps
// ErrUnsupported where the store keeps no such record.
func (c *Client) LastEviction(ctx context.Context, name string) (*Eviction, error) {
	e, err := c.lastEviction(ctx, name)
	if err != nil {
		return nil, c.wrap(ctx, "look for evictions from", name, err)
	}
	return e, nil
}

func (c *Client) lastEviction(ctx context.Context, name string) (*Eviction, error) {
	r, ok := c.backend.(driver.Evicter)
	switch {
	case ctx == nil:
		return nil, errNilContext
	case c.isClosed():
		return nil, ErrClosed
	case !ok:
		return nil, fmt.Errorf("%w: it cannot take a lock away", ErrUnsupported)
	}
	if err := driver.CheckName(name); err != nil {
		return nil, err
	}
	note, err := r.LastEviction(ctx, name)
	if err != nil || note == "" {
		return nil, err
	}
	e := new(Eviction)
	if err := json.Unmarshal([]byte(note), e); err != nil {
		return nil, fmt.Errorf("the record is not readable: %w", err)
	}
	return e, nil
}

// AskHolder marks an ordinary waiter, and a holder that wants to know follows its own name: it
// works on every store, keeps its place in the queue, and is shown by hasp who. Rejected: a
// revocation node, as Curator has, or a channel.

// AskHolder makes a request that asks the holder of the lock to give it up soon, and says why (at
// most 1 KB of UTF-8). It is a request: a holder that did not ask to be asked ([Revocable]; its
// Owner.Listens says so) is not told, and no holder is made to comply. Others see the reason in
// [Client.Inspect]. A store that does not show who waits refuses it with ErrUnsupported, and
// Revocable as well.
func AskHolder(why string) LockOption {
	return func(c *lockConfig) { c.asks = why }
}

// Revocable calls f when a waiter asks the holder of the lock to give it up: once for each waiter
// that asks, with its owner and the reason (Owner.Asks). f runs on a separate goroutine and may
// release the lease.
//
// If every is 0, that costs a watch on the name while the lock is held, and a look at its queue
// after each change; on a store that cannot be watched a look each second. Otherwise it costs a
// look every so often: a request is told that much later, and a lock that is held for less is not
// looked at.
func Revocable(every time.Duration, f func(by Owner)) LockOption {
	return func(c *lockConfig) { c.revoked, c.revokedEvery = f, every }
}

// listen tells f who asks for the lock, for as long as the lease is held.
func (c *Client) listen(l *Lease, r *request) {
	reported := map[string]bool{} // by id, those that ask at this moment: an entry that has gone does not come back
	report := func(q Queue) {
		asking := map[string]bool{}
		for _, w := range q.Waiters {
			if w.Owner.Asks == "" {
				continue
			}
			if !reported[w.ID] && l.Held() {
				r.revoked(w.Owner)
			}
			asking[w.ID] = true
		}
		reported = asking
	}
	ctx := l.Context()
	if r.revokedEvery > 0 {
		for sleep(ctx, r.revokedEvery) {
			if q, err := c.inspect(ctx, l.Name(), 0); err == nil { // else it looks again
				report(q)
			}
		}
		return
	}
	for q, err := range c.Follow(ctx, l.Name()) {
		if err == nil { // else it goes on when the store is back
			report(q)
		}
	}
}
