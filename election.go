package hasp

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

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

// Term is one turn of leading. It is a lease: Lost, Context, Held and Token say what they
// say there, and a deposed leader must stop acting when Context ends.
type Term struct {
	*Lease
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

// Resign ends the term, and the next candidate leads. It is Release under its usual name.
func (t *Term) Resign(ctx context.Context) error {
	if t == nil {
		return (*Lease)(nil).Release(ctx)
	}
	return t.Release(ctx)
}

// Leader is who leads, as the store has it.
type Leader struct {
	Value []byte
	Token uint64 // of the term
	ID    string // of the entry
	Owner Owner
	Since time.Time // when it became a candidate, by its own clock
}

// Leader asks who leads now. Without a leader the error wraps ErrNoLeader.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	l, err := e.leader(ctx)
	if err == nil && l.ID == "" {
		err = ErrNoLeader
	}
	if err != nil {
		return Leader{}, e.client.wrap(ctx, "ask who leads", e.handle.name, err)
	}
	return l, nil
}

func (e *Election) leader(ctx context.Context) (Leader, error) {
	if err := e.check(); err != nil {
		return Leader{}, err
	}
	return e.first(ctx)
}

// first reads who leads: the first in the queue, however long that is. It is the zero Leader if
// there is none.
func (e *Election) first(ctx context.Context) (Leader, error) {
	q, err := e.client.inspect(ctx, e.handle.name, 1)
	return q.leader(), err
}

// leader is the zero Leader if no entry holds.
func (q *Queue) leader() Leader {
	if len(q.Holders) == 0 {
		return Leader{}
	}
	h := q.Holders[0]
	return Leader{Value: h.Value, Token: h.Token, ID: h.ID, Owner: h.Owner, Since: h.Since}
}

func (e *Election) check() error {
	if !e.client.traits.Values {
		return fmt.Errorf("%w: it has no elections", ErrUnsupported)
	}
	return e.handle.err
}

// Observe yields the leader of the moment and then every change of leader or value, until
// ctx ends or the loop is left. A Leader with an empty ID says that there is no leader. Changes
// that follow each other quickly may be folded: the last one is always seen. Errors are
// yielded as [Client.Follow] does.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		if err := e.check(); err != nil {
			yield(Leader{}, e.client.wrap(ctx, "observe", e.handle.name, err))
			return
		}
		// Reading the first alone also leaves out the changes of the queue behind.
		followed(ctx, e.client, e.handle.name, e.first, Leader.same)(yield)
	}
}

func (l Leader) same(o Leader) bool {
	return l.ID == o.ID && l.Token == o.Token && string(l.Value) == string(o.Value)
}
