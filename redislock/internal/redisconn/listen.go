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
// of these.
func (l *Listener) once(ctx context.Context, first *chan<- error) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	u := upSignal{tell: func() {
		if *first != nil {
			*first <- nil
			*first = nil
		}
		l.Subscribed(ctx)
	}}
	err := l.Conn.Subscribe(ctx, l.Channel, u.up, l.Message)
	cancel()
	established := u.wait()
	if *first != nil {
		*first <- err
	}
	return established
}

// upSignal calls tell on a goroutine that lasts as long as the call, one call at a time. A client
// library may confirm a subscription more than once, and must not wait for what follows from that.
type upSignal struct {
	tell func()

	calls   sync.WaitGroup
	mu      sync.Mutex
	ever    bool
	pending bool // tell is to be called, once more if it runs
	running bool
	over    bool // wait was called
}

func (u *upSignal) up() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return
	}
	u.ever, u.pending = true, true
	if !u.running {
		u.running = true
		u.calls.Go(u.run)
	}
}

func (u *upSignal) run() {
	for {
		u.mu.Lock()
		if !u.pending {
			u.running = false
			u.mu.Unlock()
			return
		}
		u.pending = false
		u.mu.Unlock()
		u.tell()
	}
}

// wait returns when tell is not called any more, and reports whether it ever was.
func (u *upSignal) wait() bool {
	u.mu.Lock()
	u.over = true
	u.mu.Unlock()
	u.calls.Wait()
	return u.ever
}
