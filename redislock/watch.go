package redislock

import (
	"context"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// watchPeriod is how long a name's changes are published after a request to watch it. A watcher
// repeats the request at half of it.
const watchPeriod = 20 * time.Second

// Watch listens to the name's channel. Changes are published only while the name's hash says
// that a client watches it: without watchers no message is sent. No message announces the expiry
// of a holder, so there is a timer for it.
func (q *queue) Watch(ctx context.Context, name string, changed func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stands, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- q.conn.Subscribe(ctx, q.key(name), func() {
			select {
			case stands <- struct{}{}:
			default:
			}
		}, func(string) { changed() })
	}()
	select {
	case <-stands:
	case err := <-ended:
		return err
	}
	for {
		// Request first, then call changed: what changes after the request is published, and
		// what changed before is seen by the read that follows the call.
		expiry, err := q.requestWatch(ctx, name)
		if err != nil {
			return err
		}
		changed()
		wait := watchPeriod / 2
		if expiry > 0 && expiry < wait {
			wait = max(expiry, 20*time.Millisecond) // a holder that is never removed must not make this spin
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case err := <-ended:
			timer.Stop()
			return err
		}
	}
}

func (q *queue) requestWatch(ctx context.Context, name string) (expiry time.Duration, err error) {
	call := redisconn.Call{Keys: []string{q.key(name)}, Args: []string{"", micros(watchPeriod), millis(q.opts.Retention)}}
	r := q.guard.Eval(ctx, watchScript, call, 0)
	if r.Err != nil {
		return 0, wrongType(name, r.Err)
	}
	us, ok := r.Value.(int64)
	if !ok {
		return 0, errForeign(name)
	}
	return time.Duration(us) * time.Microsecond, nil
}

var (
	_ driver.Watcher = (*queue)(nil)
	_ driver.Namer   = (*queue)(nil)
	_ driver.Evicter = (*queue)(nil)
)
