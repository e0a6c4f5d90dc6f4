package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/exit"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
)

// acquisition is one attempt to get a lock, and everything that is reported about it.
type acquisition struct {
	app    *app
	client *hasp.Client
	flags  *lockFlags
	any    bool      // take one of names
	until  time.Time // when the wait is over; zero: as long as it takes
	names  []string
	note   string
	opts   []hasp.LockOption // besides
	report *reporter
}

// lock takes the lock, or any of several, or all, one after the other in an order that all clients
// share.
func (q *acquisition) lock(ctx context.Context) (*commandLease, error) {
	takeAll, takeAny := hasp.LockAll, hasp.LockAny
	if q.flags.noWait {
		takeAll, takeAny = hasp.TryLockAll, hasp.TryLockAny
	}
	var locks []hasp.Locker
	for _, name := range q.names {
		locks = append(locks, q.locker(name))
	}
	if len(locks) == 1 || q.any {
		l, err := takeAny(ctx, locks...)
		if err != nil {
			return nil, err
		}
		return leaseOf(l), nil
	}
	m, err := takeAll(ctx, locks...)
	if err != nil {
		return nil, err
	}
	return leaseOfAll(m, q.names), nil
}

// locker chooses the primitive.
func (q *acquisition) locker(name string) hasp.Locker {
	opts := append([]hasp.LockOption{hasp.Note(q.note)}, q.opts...)
	for _, h := range heldAbove(q.app.settings.Getenv) {
		opts = append(opts, hasp.Holding(h.ID)) // so that hasp deadlocks sees nested runs
	}
	switch p := q.flags.permits; {
	case p.n > 0:
		return q.client.Semaphore(name, p.n, opts...).Locker(p.k)
	case q.flags.shared:
		return q.client.RWMutex(name, opts...).RLocker()
	}
	return q.client.Mutex(name, opts...)
}

// exclusive reports whether waiting for the name while holding it is a deadlock.
func (f *lockFlags) exclusive() bool { return f.permits.n == 0 }

// errWaitOver is the cause of the end of --wait. A plain deadline is not enough: a store's client
// library may run into its own deadline, and that is an outage, not a busy lock.
var errWaitOver = errors.New("the wait is over")

// run gets the lock, or returns a failure that says why not.
func (q *acquisition) run(ctx context.Context) (*commandLease, error) {
	wctx, cancel := q.bounded(ctx)
	defer cancel()
	if q.flags.exclusive() && !q.flags.noWait {
		if err := q.checkNested(wctx); err != nil {
			return nil, exit.Of(interruption(ctx, err))
		}
	}
	// Stop it before anything else is printed, so that "waiting" never follows "acquired".
	stopWatching := q.watch(wctx)
	g, err := q.lock(wctx)
	stopWatching()
	switch {
	case err == nil:
		q.report.held(g)
		return g, nil
	case errors.Is(err, hasp.ErrBusy), context.Cause(wctx) == errWaitOver:
		return nil, q.busy(ctx, err)
	}
	return nil, exit.Of(interruption(ctx, err))
}

// checkNested refuses to wait for oneself: for one of the locks that are wanted, or, where one of
// several is, for all of them.
func (q *acquisition) checkNested(ctx context.Context) (err error) {
	for _, name := range q.names {
		err = q.app.checkNested(ctx, q.client, name)
		if own := errors.Is(err, hasp.ErrDeadlock); own != q.any || err != nil && !own {
			break
		}
	}
	return err
}

// bounded is ctx with the end of the wait. A try also ends when the store does not answer, but that
// is not a busy lock; one of many locks asks for each.
func (q *acquisition) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if q.flags.noWait {
		return context.WithTimeout(ctx, answerBound*time.Duration(1+len(q.names)/100))
	}
	return waitUntil(ctx, q.until)
}

// busy says who holds the lock. It asks for the whole queue, even if the refusal names a holder: a
// person decides by how long the holder has had the lock and by how many wait. The holder may have
// gone by now; then the message says so and names no one. If the store cannot be asked, that is the
// error instead: the wait ended because the store was silent, not because the lock was busy.
func (q *acquisition) busy(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	name := q.names[0]
	var which *hasp.LockError
	if errors.As(err, &which) {
		name = which.Name // of several
	}
	queue, ierr := q.client.Inspect(ctx, name)
	if ierr != nil && !errors.Is(err, hasp.ErrBusy) {
		return exit.Of(interruption(ctx, ierr))
	}
	text := fmt.Sprintf("%q held by another", view.Clean(name))
	if ierr == nil {
		text = view.HeldBy(queue, isMe, time.Now())
	}
	if q.any {
		text = fmt.Sprintf("none of %d was granted; %s", len(q.names), text)
	}
	if !q.flags.noWait {
		text += "; waited " + view.Brief(time.Since(q.report.began))
	}
	return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeBusy, Err: fmt.Errorf("busy: %s", text)}
}

const (
	watchAfter = 2 * time.Second // a person begins to wonder
	watchEvery = 2 * time.Second
)

// watch shows who holds the lock and how many are ahead, and on a terminal shows it again whenever
// that changes; a log gets one line. It polls instead of following the name: one waiter that a
// person looks at costs the store a request every two seconds. stop returns when nothing more is
// printed.
func (q *acquisition) watch(ctx context.Context) (stop func()) {
	if q.flags.noWait || q.report.quiet || q.report.json {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		shown := ""
		for delay := watchAfter; sleep(ctx, delay); delay = watchEvery {
			queue, err := q.current(ctx)
			if err != nil {
				continue // Lock itself tells about a store that does not answer
			}
			key, text := waitingText(queue, time.Now())
			if q.any {
				text = fmt.Sprintf("waiting for one of %d (%s): %s", len(q.names), view.Clean(q.report.name), view.HeldBy(queue, isMe, time.Now()))
			}
			if key != shown && ctx.Err() == nil {
				shown = key
				q.report.say("%s; the store is %s", text, q.report.store)
				if q.any || !q.app.tty {
					return
				}
			}
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}

// current is the queue in which we wait: of several locks, the first of those in which we do, and of
// a choice, which may be long, the first.
func (q *acquisition) current(ctx context.Context) (queue hasp.Queue, err error) {
	for _, name := range q.names {
		queue, err = q.client.Inspect(ctx, name)
		if err != nil || q.any || slices.ContainsFunc(queue.Waiters, isMe) {
			break
		}
	}
	return queue, err
}

// waitingText describes our place. key changes when there is something new to show; the passing
// time alone does not change it.
func waitingText(q hasp.Queue, now time.Time) (key, text string) {
	position := 0
	for i, e := range q.Waiters {
		if isMe(e) {
			position = i + 1
		}
	}
	for _, h := range q.Holders {
		key += h.ID + " "
	}
	key += fmt.Sprint(position)
	if position == 0 {
		return key, "waiting: " + view.HeldBy(q, isMe, now)
	}
	return key, fmt.Sprintf("waiting, position %d of %d: %s", position, len(q.Waiters), view.HeldBy(q, isMe, now))
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
