package serve

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// about says what is served.
func (s *Server) about(*call) (any, error) { return s.store(), nil }

func (s *Server) store() httpapi.Store {
	b := s.o.Store
	return httpapi.Store{Server: s.name, Label: b.String(), Traits: httpapi.TraitsOf(b.Traits()), Can: abilities(b)}
}

func (s *Server) openSession(c *call) (any, error) {
	var in httpapi.OpenSession
	if err := c.decode(&in); err != nil {
		return nil, err
	}
	if !c.holder.MayAnywhere(access.Lock) {
		return nil, httpapi.NewProblem(httpapi.Forbidden, fmt.Sprintf("token %q has the right to lock no name", c.holder.Name))
	}
	x, granted, err := s.open(c.ctx(), c.holder, time.Duration(min(in.TTL, s.o.Limits.TTL.Milliseconds()+1))*time.Millisecond)
	if err != nil {
		return nil, err
	}
	c.status = http.StatusCreated
	// A ticket does no I/O, and this one is never used: it shows what others can.
	can := abilities(x.drv.Ticket(driver.Request{Name: "-", ID: "-", Units: 1, Capacity: 1}))
	return httpapi.Session{Session: x.id, Valid: granted.Milliseconds(), Can: can, Store: s.store()}, nil
}

func (s *Server) closeSession(c *call, x *session) (any, error) {
	return nil, s.close(c.ctx(), x, "its client has closed it")
}

func (s *Server) keepAlive(c *call, x *session) (any, error) {
	return orError(x.keepAlive(c.q.Context()))
}

// orError keeps an answer of zero from being sent beside an error.
func orError[T any](answer T, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return answer, nil
}

func (s *Server) events(c *call, x *session) (any, error) {
	after, err := c.number("after", 0)
	if err != nil {
		return nil, err
	}
	wait, err := c.number("wait_ms", 0)
	if err != nil {
		return nil, err
	}
	return orError(x.events(c.q.Context(), after, c.patience(int64(min(wait, uint64(longestWait.Milliseconds()))))))
}

// number reads a parameter of the query.
func (c *call) number(key string, def uint64) (uint64, error) {
	text := c.q.URL.Query().Get(key)
	if text == "" {
		return def, nil
	}
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, httpapi.NewProblem(httpapi.Invalid, key+" is not a whole number")
	}
	return n, nil
}

// patience is how long a request waits that says wait_ms.
func (c *call) patience(ms int64) time.Duration {
	d := time.Duration(min(max(ms, 0), longestWait.Milliseconds())) * time.Millisecond
	_ = c.allow(storeAnswer + d)
	return d
}

// lock is the number in the path.
func (c *call) lock() (uint64, error) {
	n, err := strconv.ParseUint(c.q.PathValue("number"), 10, 63)
	if err != nil || n == 0 {
		return 0, httpapi.NewProblem(httpapi.Invalid, "a lock of a session is a whole number from 1 on, as in /v1/locks/1")
	}
	return n, nil
}

func (s *Server) release(c *call, x *session) (any, error) {
	number, err := c.lock()
	if err != nil {
		return nil, err
	}
	return nil, x.leave(c.q.Context(), number)
}

// held is the lock of the session that the path names.
func (c *call) held(x *session, in any) (*lock, error) {
	number, err := c.lock()
	if err != nil {
		return nil, err
	}
	if err := c.decode(in); err != nil {
		return nil, err
	}
	l, err := x.find(number)
	if err == nil {
		err = c.may(access.Lock, l.name)
	}
	return l, err
}

func (s *Server) publish(c *call, x *session) (any, error) {
	var in httpapi.Value
	l, err := c.held(x, &in)
	if err != nil {
		return nil, err
	}
	p, ok := l.ticket.(driver.Publisher)
	if !ok || !s.o.Store.Traits().Values {
		return nil, unsupported("keeps no values")
	}
	if len(in.Value) > 1024 {
		return nil, httpapi.NewProblem(httpapi.Invalid, "value has more than 1024 bytes")
	}
	return nil, x.asHolder(c.q.Context(), l, func(ctx context.Context) error {
		if in.Number != 0 && in.Number < l.published { // late: a newer one is published
			return nil
		}
		l.published = max(l.published, in.Number)
		return p.Publish(ctx, in.Value)
	})
}

func (s *Server) downgrade(c *call, x *session) (any, error) {
	var in httpapi.Smaller
	l, err := c.held(x, &in)
	if err != nil {
		return nil, err
	}
	d, ok := l.ticket.(driver.Downgrader)
	if !ok {
		return nil, unsupported("cannot make a held lock smaller")
	}
	if in.Units < 1 || in.Units > driver.Whole {
		return nil, httpapi.NewProblem(httpapi.Invalid, "units must be at least 1")
	}
	return nil, x.asHolder(c.q.Context(), l, func(ctx context.Context) error { return d.Downgrade(ctx, in.Units) })
}

func unsupported(what string) *httpapi.Problem {
	return httpapi.NewProblem(httpapi.Unsupported, "the store "+what)
}
