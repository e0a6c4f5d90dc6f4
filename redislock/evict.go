package redislock

import (
	"context"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Evict removes an entry on an operator's behalf, and tells its session.
func (q *queue) Evict(ctx context.Context, name, id string) error {
	return q.EvictFor(ctx, name, id, "")
}

// EvictFor does so, and keeps the note, if there is one, in the name's hash, which is deleted with it.
func (q *queue) EvictFor(ctx context.Context, name, id, note string) error {
	if !driver.ValidID(id) {
		return driver.ErrGone // no entry has such an ID
	}
	there, err := q.leave(ctx, redisconn.Call{Keys: []string{q.key(name)}, Args: []string{id, note}})
	if err == nil && !there {
		err = driver.ErrGone
	}
	return err
}

// LastEviction returns the note of the last eviction.
func (q *queue) LastEviction(ctx context.Context, name string) (string, error) {
	r := q.read(ctx, q.key(name), 1)
	if r.Err != nil {
		return "", wrongType(name, r.Err)
	}
	_, hash := contents(r.Value)
	return hash["evicted"], nil
}

var _ driver.Recorder = (*queue)(nil)
