package redislock

import (
	"context"
	"fmt"
	"strconv"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// Adopt takes over the key of another session, which holds our value from then on: its
// renewals and its Leave compare theirs, and find that they have nothing. Other libraries see
// a lock that stays held. It is a whole TTL from now that the key has left, as for one that
// is taken; should the request arrive when we have given up, nobody renews it.
//
// A token where there is a counter, or none where there is none: else the exporter uses
// another fence than we, and his token would say nothing here.
func (t *attempt) Adopt(ctx context.Context, id string, seq uint64) (driver.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return driver.Verdict{}, err
	}
	s, r := t.session, t.request
	d, o := s.store.dialect, s.store.opts
	if r.Units != driver.Whole || r.Capacity != driver.Whole || (seq != 0) != s.store.Traits().Fencing {
		return driver.Verdict{}, errNoEntry
	}
	keys, err := s.store.keys(r.Name)
	if err == nil {
		err = t.register(keys, false)
	}
	if err != nil {
		return driver.Verdict{}, err
	}
	args := append([]string{d.me(t), millis(s.opts.TTL), id, strconv.FormatUint(seq, 10), s.counter}, noted(t)...)
	reply := s.store.conn.Eval(ctx, d.adopt, redisconn.Call{Keys: keys, Args: args}, o.Replicas)
	if reply.Err != nil {
		return driver.Verdict{}, identify(ctx, s.store.conn, keys[0], wrongType(r.Name, reply.Err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.left || s.closed:
		return driver.Verdict{}, errSessionClosed // Leave and Close gave back what this took
	case reply.Value != int64(1):
		t.gone, t.sent = true, false
		delete(s.tickets, r.ID)
		return driver.Verdict{}, errNoEntry
	}
	t.held = true
	return driver.Verdict{Held: true, Token: seq}, nil
}

var errNoEntry = fmt.Errorf("%w: no such entry to take over", driver.ErrGone)
