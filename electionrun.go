package hasp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// An error of lead in a term that was lost follows from the loss; in a term that was not lost it is
// the program's, which alone knows whether the next term may do better: so it ends Run. Rejected:
// trying after every error (a leader that can never work would take turns for ever); callbacks for
// the start and the end of a term, as client-go has (the second may be called while the first still
// runs). A refusal ends Run before its first term and not after, as in hasp elect; an unreachable
// store never does: a service may start before its store.

// Run campaigns, and calls lead for each term that this candidate wins, until something of the list
// below ends it. value is published during each term, as with [Election.Campaign].
//
// The context of lead is that of [Lease.Bind]: it ends when the term is lost, or ctx ends. lead
// must return then; no other term of this Run begins before it has. When it returns or panics, the
// term is resigned, within five seconds, and after a pause this candidate stands at the end of the
// queue again. The pauses are random, double from some milliseconds to two seconds, and begin anew
// after a term of ten seconds.
//
// Run ends, always with an error, when
//   - ctx ends: the error wraps ctx's, or is lead's own if that failed at its end with something
//     else;
//   - lead returns an error in a term that was not lost. If the next term may do better, log it and
//     return nil;
//   - a campaign fails with what no repetition cures: bad input
//     ([ErrInvalid]), a store without elections ([ErrUnsupported]), a name that is in use as
//     another kind of lock ([ErrMismatch]), a context that holds the name already ([ErrDeadlock]),
//     a closed client ([ErrClosed]), credentials that the store does not know ([ErrInvalid]
//     as well), or a refusal of the store ([ErrRefused]) before the first term.
//
// Everything else is tried again: a store that cannot be reached, from the start; a term that was
// lost, or whose end is unknown, also if lead returned an error then; a refusal after the first
// term, since a failover makes a store read-only for a moment. The client's observers are told of
// each failure ([EventFailed], [EventLost], [EventReleased]); if there are none, log/slog's default
// logger is.
func (e *Election) Run(ctx context.Context, value []byte, lead func(ctx context.Context, term *Term) error) error {
	if lead == nil {
		return e.client.wrap(ctx, "campaign for", e.handle.name, fmt.Errorf("%w: the function is nil", ErrInvalid))
	}
	var b backoff
	for led := false; ; {
		began := time.Now()
		term, err := e.Campaign(ctx, value)
		switch {
		case err == nil:
			led, began = true, time.Now()
			var again bool
			if again, err = term.serve(ctx, lead); !again {
				return err
			}
		case ctx == nil, ctx.Err() != nil, hopeless(err), !led && errors.Is(err, ErrRefused):
			return err
		default:
			e.client.logUnheard(Event{Kind: EventFailed, Context: ctx, Name: e.handle.name, Wait: time.Since(began), Err: err})
		}
		if err == nil && time.Since(began) >= longTerm {
			b = backoff{}
		}
		if !b.sleep(ctx) {
			return e.client.wrap(ctx, "campaign for", e.handle.name, contextError(ctx))
		}
	}
}

// longTerm is how long a term lasts whose end is no sign that the next will be short. Candidates
// that cannot lead would otherwise take turns as fast as the store lets them.
const longTerm = 10 * time.Second

// serve leads for one term. When it returns, or panics, lead has ended and the term was resigned.
// again says that the candidate continues.
func (t *Term) serve(ctx context.Context, lead func(context.Context, *Term) error) (again bool, err error) {
	work, cancel := bind(ctx, t.Lease)
	var resigned error
	func() {
		// First the context: what lead has started and left behind must not go on under the next
		// leader.
		defer func() { cancel(nil); resigned = t.unlock() }()
		err = lead(work, t)
	}()
	switch {
	case ctx.Err() != nil:
		if err == nil || errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)) || t.lostBy(err) {
			c := t.entry.session.client
			err = c.wrap(ctx, "campaign for", t.Name(), contextError(ctx))
		}
		return false, err
	case errors.Is(resigned, ErrLost), errors.Is(resigned, ErrUnknown), t.lostBy(err):
		// What lead returned follows from the loss, which was told, or from what keeps the store
		// from answering. The release may be the first to learn of it: a fence has refused a write,
		// say, before the store has told of an eviction.
		return true, nil
	}
	return err == nil, err
}

// lostBy reports an error that tells of the loss of this term, and not of another lock.
func (t *Term) lostBy(err error) bool {
	var l *LostError
	return errors.As(err, &l) && l.Name == t.Name() && l.Token == t.Token()
}

// hopeless reports errors of a Lock or Campaign that the same call will meet again.
func hopeless(err error) bool {
	return final(err) || errors.Is(err, ErrClosed) || errors.Is(err, ErrDeadlock)
}

// logUnheard logs what a caller does not get as an error, and no observer was told.
func (c *Client) logUnheard(e Event) {
	if len(c.cfg.observe) > 0 {
		return
	}
	e.Backend = c.backend.String()
	SlogObserver(slog.Default()).Observe(e)
}
