package hasp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Lease is a held lock, and owning it is owning the lock: never a goroutine, a process
// or a Mutex value. Its methods may be called at once from many goroutines.
type Lease struct {
	session *session
	ticket  driver.Ticket
	id      string
	request request
	parent  context.Context // the caller's, for its values

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the acquisition or release under way; else nil
	state  leaseState
	token  uint64
	err    error         // why it is no longer held
	since  time.Time     // acquired
	lost   chan struct{} // made on demand, closed at a loss
	ctx    context.Context
	endCtx context.CancelCauseFunc
}

type leaseState int

const (
	pending leaseState = iota // not yet granted, and not yet refused
	held
	lost
	released
)

// Name returns the lock's name.
func (l *Lease) Name() string { return l.request.name }

// ID returns the id of the entry in the store, as Inspect shows it.
func (l *Lease) ID() string { return l.id }

// Token returns the fencing token of this grant: greater than that of every earlier grant
// of the name. It is 0 where the store cannot promise that (Traits().Fencing is false).
// Hand it to the resource with every write, and have the resource refuse a smaller one
// than it has seen.
func (l *Lease) Token() uint64 { return l.token }

// Held reports whether the lease may be relied on at this moment. It is computed from the
// clocks at every call, so the first call after a pause already tells the truth.
func (l *Lease) Held() bool {
	if l == nil || !l.session.trusted() {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == held
}

// Deadline returns when Held ends if no renewal succeeds from now on; each renewal moves
// it. The zero time means never: the store is bound to the process.
func (l *Lease) Deadline() time.Time { return l.session.deadline() }

// Lost returns a channel that is closed when the lease is lost: no later than the
// deadline, before the store may hand the lock on. Release does not close it.
func (l *Lease) Lost() <-chan struct{} {
	l.session.trusted()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = make(chan struct{})
		if l.state == lost {
			close(l.lost)
		}
	}
	return l.lost
}

// Context returns the context for the work under the lock. It carries the values of the
// context given to Lock, but not its end: it ends when the lease is lost, with the
// *LostError as its cause, or released. Locking the same name with it, or with a context
// made from it, is recognised as waiting for oneself.
func (l *Lease) Context() context.Context {
	l.session.trusted()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		base := context.WithValue(context.WithoutCancel(l.parent), leaseKey{}, l)
		l.ctx, l.endCtx = context.WithCancelCause(base)
		if l.state != held {
			l.endCtx(l.err)
		}
	}
	return l.ctx
}

// Err returns nil while the lease is held, a *LostError once it is lost, and an error
// wrapping ErrNotHeld once it is released.
func (l *Lease) Err() error {
	l.session.trusted()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

type leaseKey struct{}

// holding reports whether ctx was made from a held lease that waiting for r would wait
// for. Semaphores are left alone: to take a second permit is no mistake in itself.
func holding(ctx context.Context, c *Client, r *request) bool {
	if r.capacity != driver.Whole {
		return false
	}
	for {
		l, ok := ctx.Value(leaseKey{}).(*Lease)
		if !ok {
			return false
		}
		if l.session.client == c && l.request.name == r.name && l.request.capacity == r.capacity && l.Held() {
			return true
		}
		ctx = l.parent
	}
}

// grant makes a pending lease held. It fails if the entry or its session was lost before
// the answer was read: a grant that arrives after the deadline, to a process that was
// stopped meanwhile, is none.
func (s *session) grant(l *Lease, token uint64) error {
	if s.client.traits.Fencing == (token == 0) {
		return fmt.Errorf("driver error: token %d from a store with Fencing %t", token, s.client.traits.Fencing)
	}
	if !s.trusted() {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.endErr
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != pending {
		return fmt.Errorf("%w: %w", driver.ErrGone, l.err)
	}
	l.state, l.token, l.since, l.cancel = held, token, time.Now(), nil
	return nil
}

// interrupt ends a request under way from the session's side.
func (l *Lease) interrupt(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel(cause)
	}
}

// lose ends a held or pending lease, and returns what it was. The first of lose and
// Release wins.
func (l *Lease) lose(reason Reason, err error, confirmed time.Time) (was leaseState) {
	c := l.session.client
	l.mu.Lock()
	was = l.state
	if was != held && was != pending {
		l.mu.Unlock()
		return was
	}
	e := &LostError{
		Name: l.request.name, Backend: c.backend.String(), Token: l.token,
		Reason: reason, Since: time.Now(), Confirmed: confirmed, Err: err,
	}
	l.state, l.err = lost, e
	if l.lost != nil {
		close(l.lost)
	}
	if l.endCtx != nil {
		l.endCtx(e)
	}
	hold := e.Since.Sub(l.since)
	l.mu.Unlock()
	if was == held {
		c.event(Event{Kind: Lost, Name: e.Name, Token: e.Token, Hold: hold, Err: e})
	}
	return was
}

// Release gives the lock back. nil says that the lease was valid to the end and that the
// store has confirmed that it is gone. Otherwise the error wraps
//   - ErrLost: the lease was lost before; whatever is left in the store is removed;
//   - ErrNotHeld: it was released before, or is nil;
//   - ErrUnknown: the store has not answered, until ctx or the lease ended. It may still
//     hold the lock for us; hasp goes on releasing in the background.
//
// From the moment of the call Held is false and Context is cancelled, whatever the result.
// If ctx has ended already, the lock is released in the background and the result is
// ErrUnknown.
func (l *Lease) Release(ctx context.Context) error {
	if l == nil {
		return fmt.Errorf("hasp: release of a nil lease: %w", ErrNotHeld)
	}
	err := l.release(ctx)
	if err == nil || errors.As(err, new(*LostError)) {
		return err // a LostError names lock and store itself
	}
	return l.session.client.wrap("release", l.request.name, err)
}

func (l *Lease) release(caller context.Context) error {
	s := l.session
	s.trusted()
	if caller == nil {
		caller = nilContext
	}
	// Ends with the caller's context or with the session: without trust there is nothing
	// left to confirm.
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)

	l.mu.Lock()
	if l.state != held {
		defer l.mu.Unlock()
		return l.err
	}
	// Trust ends before the request leaves: once the store has it, the next may hold.
	l.state, l.err, l.cancel = released, errReleased, cancel
	if l.endCtx != nil {
		l.endCtx(errReleased)
	}
	hold := time.Since(l.since)
	l.mu.Unlock()

	err := l.leave(ctx)
	s.remove(l)
	s.client.event(Event{Kind: Released, Name: l.request.name, Token: l.token, Hold: hold, Err: err})
	return err
}

var errReleased = fmt.Errorf("%w: it was released", ErrNotHeld)

// nilContext stands in for a nil one: ended from the start, with a cause that says so.
var nilContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errNilContext)
	return ctx
}()

// leave removes the entry and tells whether the lease was valid to the end. After an
// unanswered attempt it asks again, and an entry that is then gone was removed by us: as
// long as the session is trusted the store removes it for nobody else.
func (l *Lease) leave(ctx context.Context) error {
	s := l.session
	var b backoff
	for asked := false; ; asked = true {
		if ctx.Err() != nil {
			s.client.cleanTicket(s, l.ticket)
			return fmt.Errorf("%w: %w", ErrUnknown, contextError(ctx))
		}
		switch err := l.ticket.Leave(ctx); {
		case err == nil && s.trusted(), asked && errors.Is(err, driver.ErrGone) && s.trusted():
			return nil
		case err == nil, errors.Is(err, driver.ErrGone):
			return l.lostAtRelease(err)
		}
		b.sleep(ctx)
	}
}

// lostAtRelease is for the two ways in which only the release itself finds out: the
// deadline passed while it was under way, or the store had no such entry.
func (l *Lease) lostAtRelease(err error) error {
	reason := Denied
	if err == nil {
		reason = Expired
	}
	return &LostError{
		Name: l.request.name, Backend: l.session.client.backend.String(), Token: l.token,
		Reason: reason, Since: time.Now(), Confirmed: l.session.confirmed(), Err: err,
	}
}
