package redislock

import (
	"context"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
)

// watchPeriod is how long a name's changes are published after somebody asked for it.
// Whoever watches asks again at half of it.
const watchPeriod = 20 * time.Second

// Watch listens to the name's own channel. Changes are only published while somebody has
// written into the name's hash that he watches: all others are spared the message.
// The expiry of a holder is published by nobody, so there is a timer for it.
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
		// Ask first, then call changed: what happens after the asking is published, what
		// happened before is seen by whoever reads because of the call.
		expiry, err := q.watched(ctx, name)
		if err != nil {
			return err
		}
		changed()
		wait := watchPeriod / 2
		if expiry > 0 && expiry < wait {
			wait = max(expiry, 20*time.Millisecond) // one that is never removed must not spin
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

func (q *queue) watched(ctx context.Context, name string) (expiry time.Duration, err error) {
	call := redisconn.Call{Keys: []string{q.key(name)}, Args: []string{"", micros(watchPeriod), millis(q.opts.Retention)}}
	r := q.conn.Eval(ctx, watchScript, call, 0)
	if r.Err != nil {
		return 0, wrongType(name, r.Err)
	}
	us, ok := r.Value.(int64)
	if !ok {
		return 0, foreign(name)
	}
	return time.Duration(us) * time.Microsecond, nil
}

var (
	_ driver.Watcher = (*queue)(nil)
	_ driver.Namer   = (*queue)(nil)
	_ driver.Evicter = (*queue)(nil)
)
