package redisconn

import (
	"context"
	"math/rand/v2"
	"time"
)

// The pause between attempts to listen again.
const (
	firstRetry = 50 * time.Millisecond
	maxRetry   = 2 * time.Second
)

// Listener keeps a subscription until its context ends.
type Listener struct {
	Conn    Conn
	Channel string
	Message func(text string)

	// Subscribed is called each time the subscription is established, also the first time.
	// Messages that were published while it was down are lost, so it has to read the store.
	Subscribed func(ctx context.Context)
}

// Start returns when the subscription is established, and keeps it up until done ends. ctx
// bounds the start only.
func (l *Listener) Start(ctx, done context.Context) error {
	first := make(chan error, 1) // run never waits for us
	go l.run(done, first)
	select {
	case err := <-first:
		return Refusal(err)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run listens until ctx ends, and subscribes again whenever the subscription breaks.
func (l *Listener) Run(ctx context.Context) { l.run(ctx, nil) }

// run listens until ctx ends. first, if not nil, receives nil when the subscription is established
// for the first time, or the error of the first attempt, which is then also the last.
func (l *Listener) run(ctx context.Context, first chan<- error) {
	pause := firstRetry
	for {
		established := l.once(ctx, &first)
		if established {
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
		pause = min(2*pause, maxRetry)
	}
}

// once makes one subscription and reports whether it was ever established. It drops the reason
// of the end: the requests on the same connection report it, and there is no caller here.
func (l *Listener) once(ctx context.Context, first *chan<- error) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	up := make(chan struct{}, 1) // one signal; a client library may confirm more than once
	ended := make(chan error, 1)
	go func() {
		ended <- l.Conn.Subscribe(ctx, l.Channel, func() {
			select {
			case up <- struct{}{}:
			default:
			}
		}, l.Message)
	}()
	for established := false; ; established = true {
		select {
		case <-up:
			if *first != nil {
				*first <- nil
				*first = nil
			}
			l.Subscribed(ctx)
		case err := <-ended:
			if *first != nil {
				*first <- err
			}
			return established
		}
	}
}
