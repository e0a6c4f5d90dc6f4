package redislock

import (
	"context"
	"strconv"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// Downgrade makes the held entry smaller, in one script that also grants whoever fits in
// beside it: should we die after it was sent, it was applied as a whole or not at all.
//
// No replica has to confirm it. A failover that forgets it leaves the store stricter than
// we are: our entry is whole again, and keeps out whom it might let in. And who was let in
// asks the replicas for its own grant, which they only have together with what made it.
func (t *ticket) Downgrade(ctx context.Context, units int64) error {
	call := redisconn.Call{Keys: []string{t.key}, Args: []string{t.request.ID, strconv.FormatInt(units, 10)}}
	r := t.session.queue.conn.Eval(ctx, shrinkScript, call, 0)
	if r.Err != nil {
		return wrongType(t.request.Name, r.Err)
	}
	if r.Value != int64(1) {
		return driver.ErrGone
	}
	return nil
}
