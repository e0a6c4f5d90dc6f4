package redisconn

import (
	"context"
	"math/rand/v2"
	"sync"
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
//
// It needs no goroutine besides its caller's while all is well: a server for others has thousands
// of these. A confirmation starts one, since a client library must not wait for what follows, and
// may confirm a subscription more than once: one runs at a time.
func (l *Listener) once(ctx context.Context, first *chan<- error) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu, turn sync.Mutex
	var calls sync.WaitGroup
	var established, over bool
	err := l.Conn.Subscribe(ctx, l.Channel, func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		established = true
		calls.Go(func() {
			turn.Lock()
			defer turn.Unlock()
			if *first != nil {
				*first <- nil
				*first = nil
			}
			l.Subscribed(ctx)
		})
	}, l.Message)
	cancel()
	mu.Lock()
	over = true
	mu.Unlock()
	calls.Wait()
	if *first != nil {
		*first <- err
	}
	return established
}
