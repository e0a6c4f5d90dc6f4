package redislock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/internal/redisconn"
)

// The pause between attempts to listen again.
const (
	firstRetry = 50 * time.Millisecond
	mostRetry  = 2 * time.Second
)

// listener keeps a subscription standing until its context ends.
type listener struct {
	conn    redisconn.Conn
	channel string
	message func(text string)

	// stands is called each time the subscription stands, the first time included. What was
	// published while it was down is lost, so that it has to look at the store.
	stands func(ctx context.Context)
}

// start returns when the subscription stands, and leaves it standing until done ends. ctx
// bounds the start only.
func (l *listener) start(ctx, done context.Context) error {
	first := make(chan error, 1) // run never waits for us
	go l.run(done, first)
	select {
	case err := <-first:
		return refusal(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run listens until ctx ends. first, if not nil, receives nil when the subscription stands
// for the first time, or the error of the first attempt, which is then also the last.
func (l *listener) run(ctx context.Context, first chan<- error) {
	pause := firstRetry
	for {
		stood := l.once(ctx, &first)
		if stood {
			pause = firstRetry
		} else if first != nil {
			return
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, mostRetry)
	}
}

// once makes one subscription and reports whether it ever stood. Why it ended is told by
// the requests on the same connection; there is nobody to tell here.
func (l *listener) once(ctx context.Context, first *chan<- error) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up := make(chan struct{}, 1) // one signal; a client library may confirm more than once
	ended := make(chan error, 1)
	go func() {
		ended <- l.conn.Subscribe(ctx, l.channel, func() {
			select {
			case up <- struct{}{}:
			default:
			}
		}, l.message)
	}()
	for stood := false; ; stood = true {
		select {
		case <-up:
			if *first != nil {
				*first <- nil
				*first = nil
			}
			l.stands(ctx)
		case err := <-ended:
			if *first != nil {
				*first <- err
			}
			return stood
		}
	}
}

// lookUp renews what waits, which tells what holds by now. If it fails, the next KeepAlive
// does it. In a new session nothing waits, and nothing is sent.
func (s *session) lookUp(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.opts.TTL/2)
	defer cancel()
	_ = s.renew(ctx, func(t *ticket) bool { return !t.held })
}
