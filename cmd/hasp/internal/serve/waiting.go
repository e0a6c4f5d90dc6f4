package serve

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/httpapi"
)

// waiting is a request that waits for news. A handler returns it in place of an answer, so that what the request has needed until then
// can go: there may be ten thousand of them.
type waiting interface {
	// wait returns true when there is an answer, and false after d: it can be called again. It waits on a small stack.
	wait(d time.Duration) bool

	// sleep has wake called once, on a new goroutine, when wait should be called again; until then none is needed. asleep
	// false: wait is to be called now. able false: no news can be told here, and it has to wait for them.
	sleep(wake func()) (asleep, able bool)

	// result is the answer when wait has returned true.
	result() (any, error)

	// detach makes it outlast its http.Request. From then on end is called when the client goes away.
	detach()
	end(why error)
}

// lockWait waits for a change of a lock that is in the queue. It has the lock's turn.
type lockWait struct {
	*use
	session *session
	lock    *lock
	asks    bool      // until the lock is held, and asks the store when that wants to be asked; else any change is an answer
	until   time.Time // its client waits no longer
	again   time.Time // when the store wants to be asked; zero: it tells

	// Of the step that is under way. They are here, and not on the stack of a goroutine that waits.
	pause time.Time // when wait returns, also without an answer
	step  context.Context
	done  context.CancelFunc
	news  driver.Verdict

	wake     func() // while it sleeps
	unhook   func() bool
	sleeping atomic.Int32

	reply httpapi.Lock
	err   error
}

func (w *lockWait) result() (any, error) { return orError(w.reply, w.err) }

func (w *lockWait) wait(d time.Duration) bool {
	w.pause = time.Now().Add(d)
	for {
		w.begin()
		w.news, w.err = w.lock.ticket.Wait(w.step)
		if again, answered := w.came(); !again {
			return answered
		}
	}
}

// begin begins the step that waits for the first thing to do.
func (w *lockWait) begin() {
	until := w.pause
	if w.until.Before(until) {
		until = w.until
	}
	if w.asks && !w.again.IsZero() && w.again.Before(until) {
		until = w.again
	}
	w.step, w.done = w.use.step(until, true)
	if w.session.server.isDraining() { // else the drain finds the step
		w.done()
	}
}

// came says what follows from the end of the step.
func (w *lockWait) came() (again, answered bool) {
	v, err := w.news, w.err
	w.err = nil
	now := time.Now()
	by, _ := w.step.Deadline()
	// A connection of the store's driver may notice the step's deadline before the timer of the step does.
	ended := isContext(err) && (w.step.Err() != nil || !now.Before(by))
	w.done()
	w.step, w.done = nil, nil
	switch {
	case !ended:
		answered = w.changed(v, err)
	case w.over() != nil:
		w.err, answered = w.session.ended(w.over()), true
	case w.session.server.isDraining():
		w.drained()
		answered = true
	case !now.Before(w.until):
		w.hears(driver.Verdict{})
		w.reply.Unchanged, answered = !w.asks, true
	case now.Before(w.pause):
		answered = w.ask()
	default:
		return false, false
	}
	if answered {
		w.release()
	}
	return !answered, answered
}

// ask makes the entry, or asks for it, and reports whether that is the answer.
func (w *lockWait) ask() (answered bool) {
	var v driver.Verdict
	w.err = w.session.step(w.use, func(ctx context.Context) (err error) {
		v, err = w.session.enqueue(ctx, w.lock)
		return err
	})
	w.hears(v)
	return w.err != nil || v.Held
}

// changed takes in what the store has told.
func (w *lockWait) changed(v driver.Verdict, err error) (answered bool) {
	v, err = w.session.heard(w.lock, v, err, false)
	if err != nil {
		w.err = w.session.ended(err)
		return true
	}
	w.hears(v)
	return v.Held || !w.asks
}

func (w *lockWait) hears(v driver.Verdict) {
	w.reply, w.again = answer(w.lock, v), time.Time{}
	if v.Retry > 0 {
		w.again = time.Now().Add(v.Retry)
	}
}

// drained leaves the entry in its place in the queue.
func (w *lockWait) drained() {
	w.hears(driver.Verdict{})
	if !w.asks {
		w.err = draining()
	}
}

// The states of a sleep. What comes while it begins keeps it from beginning.
const (
	sleepBegins = iota
	sleepLasts
	sleepOver
)

// sleep ends with the first of news, the end of the step, or what ends that. In sleepBegins it has the ticket and the step to itself, and from
// sleepLasts on it touches nothing: the goroutine that wakes may be done by then, and the turn another's.
func (w *lockWait) sleep(wake func()) (asleep, able bool) {
	ticket, able := w.lock.ticket.(driver.Alerter)
	if !able {
		return false, false
	}
	w.wake = wake
	w.sleeping.Store(sleepBegins)
	w.pause = w.until
	w.begin()
	able = w.step.Err() != nil || ticket.Alert(w.wakeUp)
	if able && w.step.Err() == nil {
		w.unhook = context.AfterFunc(w.step, w.wakeUp)
		if w.sleeping.CompareAndSwap(sleepBegins, sleepLasts) {
			return true, true
		}
	}
	w.endSleep()
	return false, able
}

// wakeUp is called by what ends a sleep. One that belongs to the sleep before, and comes late, ends this one early.
func (w *lockWait) wakeUp() {
	if w.sleeping.CompareAndSwap(sleepBegins, sleepOver) {
		return // sleep sees it
	}
	if w.sleeping.CompareAndSwap(sleepLasts, sleepOver) {
		go func() {
			w.endSleep()
			w.wake()
		}()
	}
}

// endSleep ends what a sleep has begun. The turn is ours still.
func (w *lockWait) endSleep() {
	w.lock.ticket.(driver.Alerter).Alert(nil)
	if w.unhook != nil {
		w.unhook()
	}
	w.done()
	w.unhook = nil
	w.step, w.done = nil, nil
}

// lossWait waits for losses of a session that its client has not seen.
type lossWait struct {
	*use
	session *session
	after   uint64    // the newest that it has seen
	until   time.Time // its client waits no longer

	reply httpapi.Events
	err   error
}

func (w *lossWait) result() (any, error) { return orError(w.reply, w.err) }

// sleep: there are few such requests, one for a session at most.
func (w *lossWait) sleep(func()) (asleep, able bool) { return false, false }

func (w *lossWait) wait(d time.Duration) bool {
	for until := time.Now().Add(d); ; {
		var changed <-chan struct{}
		w.reply, changed, w.err = w.session.losses(w.after)
		switch {
		case w.err != nil || len(w.reply.Lost) > 0:
		case w.news(changed, until):
			continue
		case w.over() != nil || w.session.server.isDraining() || !time.Now().Before(w.until):
			w.reply.Lost, w.reply.Draining = []httpapi.Lost{}, w.session.server.isDraining()
		default:
			return false
		}
		w.release()
		return true
	}
}

// news reports whether there is a loss.
func (w *lossWait) news(changed <-chan struct{}, until time.Time) bool {
	if w.until.Before(until) {
		until = w.until
	}
	ctx, done := w.step(until, true)
	defer done()
	if w.session.server.isDraining() { // else the drain finds the step
		return false
	}
	select {
	case <-changed:
		return true
	case <-ctx.Done():
		return false
	}
}
