package serve

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

func (s *Server) acquire(c *call, x *session) (any, error) {
	var in httpapi.Acquire
	number, r, err := s.entering(c, x, &in, &in)
	if err != nil {
		return nil, err
	}
	if in.NoWait && in.Wait != 0 {
		return nil, httpapi.NewProblem(httpapi.Invalid, "no_wait and wait_ms exclude each other")
	}
	l, err := x.enter(number, r)
	if err != nil {
		return nil, err
	}
	wait := c.patience(in.Wait)
	if in.NoWait {
		_ = c.allow(x.longestTry())
	}
	a, err := x.acquire(c.q.Context(), l, wait)
	x.dropGone(l, err)
	return orError(a, err)
}

// entering reads a request for a lock into body, of which in is a part.
func (s *Server) entering(c *call, x *session, body any, in *httpapi.Acquire) (number uint64, r driver.Request, err error) {
	if number, err = c.lock(); err == nil {
		err = c.decode(body)
	}
	if err == nil {
		r, err = s.request(c, *in, x, number)
	}
	return number, r, err
}

// request checks what the core of the library has checked where that is the client, and what only a
// server must.
func (s *Server) request(c *call, in httpapi.Acquire, x *session, number uint64) (r driver.Request, err error) {
	invalid := func(format string, args ...any) (driver.Request, error) {
		return r, httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf(format, args...))
	}
	r = driver.Request{Name: in.Name, ID: in.Entry, Units: in.Units, Capacity: in.Capacity, Value: in.Value, NoWait: in.NoWait}
	if err := driver.CheckName(in.Name); err != nil {
		return invalid("%v", err)
	}
	if err := c.may(access.Lock, in.Name); err != nil {
		return r, err
	}
	if err := size(&r, in.Kind); err != nil {
		return r, err
	}
	traits := s.o.Store.Traits()
	switch {
	case r.Capacity == driver.Whole && r.Units < r.Capacity && !traits.Shared:
		return r, httpapi.NewProblem(httpapi.Unsupported, "the store has no read locks")
	case r.Capacity != driver.Whole && !traits.Counting:
		return r, httpapi.NewProblem(httpapi.Unsupported, "the store has no semaphores")
	case len(r.Value) > 0 && !traits.Values:
		return r, httpapi.NewProblem(httpapi.Unsupported, "the store keeps no values")
	case len(in.Note)+len(in.Asks) > 1024:
		return invalid("note and asks have %d bytes, 1024 are allowed", len(in.Note)+len(in.Asks))
	case !driver.ValidText(in.Owner + in.Note + in.Asks):
		return invalid("owner, note and asks have no NUL")
	case in.Owner != "" && in.Note+in.Asks != "":
		return invalid("note and asks are for clients that do not send an owner")
	case in.Asks != "" && in.NoWait:
		return invalid("asks is for a request that waits: its holder reads it in the queue")
	case in.Asks != "" && !traits.FIFO:
		return r, httpapi.NewProblem(httpapi.Unsupported, "the store does not show who waits, so that no holder sees a request")
	case len(in.Value) > 1024:
		return invalid("value has %d bytes, 1024 are allowed", len(in.Value))
	case in.Entry != "" && !driver.ValidID(in.Entry):
		return invalid("entry has other characters than letters, digits and '-', or more than 40")
	}
	// An entry's id is the key to it: who gives another's as their own may hold that one's lock. So
	// only those who may evict every entry of the store name theirs; for others the server does.
	if in.Entry == "" || !c.holder.May(access.Operate, "") {
		r.ID = httpapi.EntryName(x.id, number)
	}
	r.Owner = s.owner(c, in)
	if len(r.Owner) > longestOwner {
		return invalid("owner has %d bytes with the token's name, %d are allowed", len(r.Owner), longestOwner)
	}
	r.Since = since(in.Since, time.Now())
	return r, nil
}

// longestOwner bounds an owner's text.
const longestOwner = 2048

// owner is written for clients that do not say who they are, as the library writes it. What others
// say of themselves is marked with their token's name, and with nothing where there are no tokens.
func (s *Server) owner(c *call, in httpapi.Acquire) string {
	all := map[string]json.RawMessage{}
	var err error
	switch {
	case in.Owner == "":
		b, err := json.Marshal(c.owner(in.Note, in.Asks))
		if err != nil {
			panic(err) // of strings
		}
		return string(b)
	case c.holder == s.everyone:
		return in.Owner
	case json.Unmarshal([]byte(in.Owner), &all) != nil || all == nil:
		raw, _ := json.Marshal(in.Owner) // a string
		all = map[string]json.RawMessage{"raw": raw}
	}
	if all["via"], err = json.Marshal(c.holder.Name); err != nil {
		panic(err) // of a string
	}
	b, err := json.Marshal(all)
	if err != nil {
		panic(err) // of what was JSON
	}
	return string(b)
}

// owner is that of a client which does not say who it is.
func (c *call) owner(note, asks string) hasp.Owner {
	return hasp.Owner{User: c.holder.Name, Host: c.q.RemoteAddr, Program: "hasp serve", Note: note, Asks: asks}
}

// since is when a client says that it has begun to wait, as far as that can be: clocks differ, and
// a wait since the year 1 is none.
func since(given, now time.Time) time.Time {
	if given.IsZero() || given.After(now) {
		return now
	}
	if earliest := now.Add(-24 * time.Hour); given.Before(earliest) {
		return earliest
	}
	return given
}

// size makes units and capacity of a kind.
func size(r *driver.Request, kind string) error {
	bare := r.Units == 0 && r.Capacity == 0
	switch {
	case bare && (kind == "" || kind == "mutex" || kind == "write"):
		r.Units, r.Capacity = driver.Whole, driver.Whole
	case bare && kind == "read":
		r.Units, r.Capacity = 1, driver.Whole
	case kind == "semaphore" && r.Capacity < driver.Whole:
		r.Units = max(r.Units, 1)
	case kind != "":
		return httpapi.NewProblem(httpapi.Invalid, "kind is mutex, read, write or semaphore; only a semaphore has units and a capacity")
	}
	if r.Units < 1 || r.Units > r.Capacity || r.Capacity > driver.Whole {
		return httpapi.NewProblem(httpapi.Invalid, fmt.Sprintf("units must be at least 1, and capacity from units to %d", driver.Whole))
	}
	return nil
}
