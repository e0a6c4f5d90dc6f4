package hasp

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/hasplock/hasp/driver"
)

// Election lets one of several candidates lead, and everybody know who. Candidates stand
// in the same queue as the waiters of a Mutex; the one in front leads.
type Election struct {
	client *Client
	handle handle
}

// Election returns the handle of the election called name. A store without
// Traits().Values refuses its use with ErrUnsupported.
func (c *Client) Election(name string, opts ...LockOption) *Election {
	return &Election{c, c.handle(name, driver.Whole, opts)}
}

// Term is one turn of leading. It is a lease: Context, Held and Token say what they
// say there, and a deposed leader must stop acting when Context ends. Release, or Unlock, resigns:
// the next candidate leads.
type Term struct {
	*Lease
}

// Release is [Lease.Release].
func (t *Term) Release(ctx context.Context) error {
	if t == nil {
		return (*Lease)(nil).Release(ctx)
	}
	return t.Lease.Release(ctx)
}

// Unlock is [Lease.Unlock].
func (t *Term) Unlock() {
	if t != nil {
		t.Lease.Unlock()
	}
}

// Campaign waits until this candidate leads, for one term; [Election.Run] leads again and again.
// value (at most 1 KB) is published with the leadership: an address, say, at which the leader can
// be reached. See [Mutex.Lock].
func (e *Election) Campaign(ctx context.Context, value []byte) (*Term, error) {
	r := e.handle.ask("campaign for", driver.Whole)
	r.value = value
	l, err := e.client.acquire(ctx, r, e.check())
	if err != nil {
		return nil, err
	}
	return &Term{l}, nil
}

// Publish replaces the published value (at most 1 KB). The error wraps ErrLost or
// ErrNotHeld if this term is over.
func (t *Term) Publish(ctx context.Context, value []byte) error {
	if t == nil || t.Lease == nil {
		return fmt.Errorf("hasp: publish in a nil term: %w", ErrNotHeld)
	}
	err := t.publish(ctx, value)
	if err == nil || errors.As(err, new(*LostError)) {
		return err
	}
	return t.entry.session.client.wrap(ctx, "publish for", t.Name(), err)
}

func (t *Term) publish(ctx context.Context, value []byte) error {
	if ctx == nil {
		return errNilContext
	}
	if err := checkValue(value); err != nil {
		return err
	}
	if err := t.Err(); err != nil {
		return err
	}
	p, ok := t.entry.ticket.(driver.Publisher)
	if !ok {
		return ErrUnsupported
	}
	err := p.Publish(ctx, value)
	if errors.Is(err, driver.ErrGone) {
		return t.entry.denied(err)
	}
	return err
}

// Leader asks who leads now: the entry has the published value, and the token of the term. Without
// a leader the error wraps ErrNotFound.
func (e *Election) Leader(ctx context.Context) (Entry, error) {
	l, err := e.leader(ctx)
	if err == nil && l.ID == "" {
		err = fmt.Errorf("%w: there is no leader", ErrNotFound)
	}
	if err != nil {
		return Entry{}, e.client.wrap(ctx, "ask who leads", e.handle.name, err)
	}
	return l, nil
}

// leader reads who leads: the first in the queue, however long that is. It is the zero Entry if
// there is none.
func (e *Election) leader(ctx context.Context) (first Entry, err error) {
	if err := e.check(); err != nil {
		return first, err
	}
	q, err := e.client.inspect(ctx, e.handle.name, 1)
	if len(q.Holders) > 0 {
		first = q.Holders[0]
	}
	return first, err
}

func (e *Election) check() error {
	if !e.client.traits.Values {
		return fmt.Errorf("%w: it has no elections", ErrUnsupported)
	}
	return e.handle.err
}

// Observe yields the leader of the moment and then every change of leader or value, until
// ctx ends or the loop is left. An Entry with an empty ID says that there is no leader. Changes
// that follow each other quickly may be folded: the last one is always seen. Errors are
// yielded as [Client.Follow] does.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := e.check(); err != nil {
			yield(Entry{}, e.client.wrap(ctx, "observe", e.handle.name, err))
			return
		}
		// Reading the first alone also leaves out the changes of the queue behind.
		followed(ctx, e.client, e.handle.name, e.leader, Entry.same)(yield)
	}
}
