package hasp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// exported is the content of Export's text. Who has the text may have the lock: it is as
// good as the right to write to the store, without which it is worth nothing.
type exported struct {
	Name     string `json:"name"`
	ID       string `json:"id"`
	Token    uint64 `json:"token"`
	Units    int64  `json:"units"`
	Capacity int64  `json:"capacity"`
}

// exportPrefix begins each text: what it is, and its version.
const exportPrefix = "hasp1."

// Export ends the lease without giving the lock back, and returns a text with which another
// process, or another client of this one, takes it over by [Client.Import]: no other client gets
// the lock in between. It sends nothing. From the call on Held is false, Context is
// cancelled, and Err wraps ErrNotHeld, as after a release; all that writes under the lock
// must have ended before.
//
// The importer has the same place, the same units and the same fencing token: it is one
// grant of the store, handed on. (A higher token would be higher than those of the waiters,
// who come later.) So a resource that checks tokens cannot tell a late write of the exporter
// from one of the importer. Where such writes are possible, release, and lock anew.
//
// This client keeps the entry alive for one TTL and then, if no client has imported it, gives
// the lock back; so does Close, at once. If this process dies, what is left of the TTL is
// the time to import. MinHold, MaxHold, StallAfter and LocalHandOver end with the export. A term of
// an Election is imported as a plain lease, its value stays published.
//
// The error wraps ErrUnsupported where entries end with the connection or the session that
// made them, ErrLost or ErrNotHeld if the lease has ended, ErrDeadlock if the lock was taken
// several times with [Reentrant], and ErrUnknown while a Downgrade has not been answered (call
// that again first), or while the lock passes from one server of hasp serve to another (call
// Export again). After an ErrUnknown the lease is held as before.
func (l *Lease) Export() (string, error) {
	if l == nil {
		return "", fmt.Errorf("hasp: export of a nil lease: %w", ErrNotHeld)
	}
	text, err := l.export()
	if err == nil || errors.As(err, new(*LostError)) {
		return text, err
	}
	return "", l.entry.session.client.wrap(context.Background(), "export", l.Name(), err)
}

func (l *Lease) export() (string, error) {
	e := l.entry
	s := e.session
	c := s.client
	e.endIfOver()
	if _, ok := e.ticket.(driver.Adopter); !ok {
		return "", errTransfer
	}
	e.mu.Lock()
	if l.err == nil && !e.onlyLocked(l) {
		e.mu.Unlock()
		return "", fmt.Errorf("%w: the lock was taken several times; release all leases but one first", ErrDeadlock)
	}
	if l.err != nil {
		defer e.mu.Unlock()
		return "", l.err
	}
	if e.units > 1 && e.downgrades > 0 {
		e.mu.Unlock()
		// The text says how many units there are, and an import of another size finds nothing.
		return "", fmt.Errorf("%w: a downgrade has not been answered; call Downgrade again first, or release", ErrUnknown)
	}
	id, err := e.exportedIDLocked()
	if err != nil {
		e.mu.Unlock()
		return "", err
	}
	// The end of the trust comes before there is a text: the importer cannot be earlier.
	l.endLocked(errExported)
	e.newest = nil
	e.state, e.err = released, errExported
	e.stopLimitLocked()
	x := exported{Name: e.name, ID: id, Token: e.token, Units: int64(e.units), Capacity: int64(e.capacity)}
	e.mu.Unlock()

	if e.handOver != nil {
		e.handOver.next() // to the store, where it queues behind the entry
	}
	// Until then the session renews the entry like the others. Leave asks for it by its id,
	// which an importer has changed.
	c.inBackground(func() {
		defer s.remove(e)
		if sleep(s.done, c.cfg.ttl) {
			c.clean(l.parent, s.done, e.ticket.Leave)
		}
	})
	l.told(l.parent, nil)
	b, err := json.Marshal(x)
	if err != nil {
		return "", err // strings and numbers cannot fail
	}
	return exportPrefix + base64.RawURLEncoding.EncodeToString(b), nil
}

// exportedIDLocked is the id by which an importer finds the entry. It comes last before the lease
// ends: the driver keeps the entry under this id from then on.
func (e *entry) exportedIDLocked() (string, error) {
	x, ok := e.ticket.(driver.Exporter)
	if !ok {
		return e.id, nil
	}
	id, err := x.ExportedID()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return id, nil
}

var (
	errExported = fmt.Errorf("%w: it was exported", ErrNotHeld)
	errTransfer = fmt.Errorf("%w: it cannot hand a held entry on to another client", ErrUnsupported)
)

// Import takes over a lease that another client has exported (see [Lease.Export]) on the
// same store. ctx bounds the call, and its values are those of the lease's context. Of the
// options, those that concern a holder apply, from now on. It does not wait for anybody.
//
// The error wraps ErrNotHeld if there is nothing to take over: somebody was faster with the
// same text, or its time is over; ErrInvalidOption if the text is none of Export's;
// ErrUnsupported if this store cannot; and ErrUnknown, or the error of ctx, if the store has
// not answered. The lock is given back then, if it turns out to be ours.
func (c *Client) Import(ctx context.Context, text string, opts ...LockOption) (*Lease, error) {
	x, err := parseExported(text)
	if err != nil {
		return nil, c.wrap(ctx, "import", x.Name, err)
	}
	h := c.handle(x.Name, x.Capacity, opts)
	r := h.ask("import", x.Units)
	if err = h.err; err == nil {
		err = c.check(ctx, r)
	}
	if err != nil {
		return nil, c.wrap(ctx, r.op, r.name, err)
	}
	r.began = time.Now()
	l, err := c.importing(ctx, r, x)
	if err != nil {
		c.event(r.told(Event{Kind: EventFailed, Context: ctx, Wait: time.Since(r.began), Err: err}))
		return nil, c.wrap(ctx, r.op, r.name, err)
	}
	c.acquired(ctx, r, l)
	return l, nil
}

func parseExported(text string) (x exported, err error) {
	body, ours := strings.CutPrefix(strings.TrimSpace(text), exportPrefix)
	b, err := base64.RawURLEncoding.DecodeString(body)
	if !ours || err != nil || json.Unmarshal(b, &x) != nil ||
		x.ID == "" || x.Units < 1 || x.Units > x.Capacity || x.Capacity > driver.Whole {
		return x, fmt.Errorf("%w: this is not what Export returned", ErrInvalidOption)
	}
	return x, nil
}

// importing adopts in the session of the moment, and in the next if that one turns out to
// have ended: an idle one may have expired without anybody's fault.
func (c *Client) importing(ctx context.Context, r *request, x exported) (*Lease, error) {
	for {
		s, err := c.session(ctx)
		if err != nil {
			return nil, err
		}
		l, err := s.adopt(ctx, r, x)
		switch {
		case err == nil:
			return l, nil
		case ctx.Err() != nil:
			return nil, unconfirmed(ctx, err)
		case s.over():
			continue // until the client is closed, or nothing answers: then there is no session
		case errors.Is(err, driver.ErrGone):
			return nil, fmt.Errorf("%w: somebody else has imported it, or its time is over", ErrNotHeld)
		}
		return nil, err
	}
}

// adopt makes the exported entry one of this session's, under a new id. A request
// without an answer is repeated under that id. If it comes to nothing, Leave removes what
// the store may have given us; should the request arrive after that, no client renews it.
func (s *session) adopt(caller context.Context, r *request, x exported) (*Lease, error) {
	ctx, cancel := context.WithCancelCause(caller)
	defer cancel(nil)
	e := &entry{
		session: s, id: s.client.newID(), name: r.name, units: int32(r.units), capacity: int32(r.capacity),
		limit: newLimit(r.limits), cancel: cancel,
	}
	e.ticket = s.drv.Ticket(driver.Request{
		Name: r.name, ID: e.id, Units: r.units, Capacity: r.capacity, Owner: r.owner, Since: r.began,
	})
	a, ok := e.ticket.(driver.Adopter)
	if !ok {
		return nil, errTransfer
	}
	if err := s.add(e); err != nil {
		return nil, err
	}
	v, unsure, err := s.ask(ctx, func(ctx context.Context) (driver.Verdict, error) {
		return a.Adopt(ctx, x.ID, x.Token)
	}, false)
	if err == nil {
		var l *Lease
		if l, err = e.grant(caller, v.Token); err == nil {
			return l, nil
		}
		unsure = true
	}
	s.abandon(caller, e, unsure || ctx.Err() != nil || !final(err) && !errors.Is(err, driver.ErrRefused))
	if cause := context.Cause(ctx); caller.Err() == nil && cause != nil {
		err = cause
	}
	return nil, err
}
