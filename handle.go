package hasp

import (
	"errors"
	"fmt"
	"time"
)

// handle is the part that all primitives share: the name, and what its options say.
type handle struct {
	name     string
	capacity int64
	owner    string
	cfg      lockConfig
	err      error // of the options; reported at the first use
}

func (c *Client) handle(name string, capacity int64, opts []LockOption) handle {
	h := handle{name: name, capacity: capacity, owner: c.owner}
	for _, opt := range opts {
		if opt == nil {
			h.cfg.err = errNilOption
			continue
		}
		opt(&h.cfg)
	}
	h.err = errors.Join(h.cfg.err, h.cfg.limits.check())
	if !c.traits.FIFO && (h.cfg.asks != "" || h.cfg.revoked != nil || h.cfg.deadlock > 0) {
		h.err = errors.Join(h.err, errHidden)
	}
	if h.cfg.note != nil || h.cfg.asks != "" || h.cfg.revoked != nil {
		o := c.cfg.owner
		o.Asks, o.Listens = h.cfg.asks, h.cfg.revoked != nil
		if h.cfg.note != nil {
			o.Note = *h.cfg.note
		}
		h.err = errors.Join(h.err, checkNote(o.Note), checkNote(o.Asks), o.fits())
		h.owner = o.encode()
	}
	return h
}

// errHidden refuses the options that need to see who waits. A store without a queue has no place
// for the request to a holder, and shows no cycle: a program that relies on either must be told.
var errHidden = fmt.Errorf("%w: it does not show who waits, so it cannot ask a holder or find a deadlock", ErrUnsupported)

func (h *handle) ask(op string, units int64) *request {
	return &request{
		op: op, name: h.name, units: units, capacity: h.capacity, owner: h.owner, requestOptions: h.cfg.requestOptions,
	}
}

func (h *handle) try(op string, units int64) *request {
	r := h.ask(op, units)
	r.noWait = true
	return r
}

// request is one acquisition.
type request struct {
	op              string // for messages: "lock", "try lock", "campaign for", ...
	name            string
	units, capacity int64
	owner           string
	value           []byte
	noWait          bool
	requestOptions
	began time.Time // set by acquire
}
