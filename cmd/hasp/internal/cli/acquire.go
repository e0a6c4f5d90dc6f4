package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/cli/view"
	"github.com/hasplock/hasp/internal/exit"
)

// acquisition is one attempt to get a lock, and everything that is reported about it.
type acquisition struct {
	app     *app
	client  *hasp.Client
	flags   *lockFlags
	any     bool      // take one of names
	outlast bool      // a quarantine, and then try again
	until   time.Time // when the wait is over; zero: as long as it takes
	names   []string
	note    string
	opts    []hasp.LockOption // besides
	report  *reporter
	seen    atomic.Pointer[hasp.Queue] // by the last look of a person who waits; nil: there was none
	silent  bool                       // the store has not answered the look after the wait
	unsure  atomic.Bool                // a try waits until it is certain that the holder is gone
	hidden  bool                       // who is ahead is shown to no one
}

// lock takes the lock, or any of several, or all, one after the other in an order that all clients
// share.
func (q *acquisition) lock(ctx context.Context) (*commandLease, error) {
	takeAll, takeAny := hasp.LockAll, hasp.LockAny
	if q.flags.noWait {
		takeAll, takeAny = hasp.TryLockAll, hasp.TryLockAny
	} else if !q.any {
		// For one lock; a choice of one would refuse FailOnDeadlock.
		takeAny = func(ctx context.Context, locks ...hasp.Locker) (*hasp.Lease, error) { return locks[0].Lock(ctx) }
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
	if !q.flags.noWait { // who does not wait is in no deadlock
		for _, h := range q.app.above() {
			if h.pid == 0 || !h.waits && h.Store == q.client.Store() {
				opts = append(opts, hasp.Holding(h.ID)) // so that hasp deadlocks sees nested runs
			}
		}
	}
	if q.client.Traits().FIFO && !q.flags.noWait && !q.any {
		opts = append(opts, hasp.FailOnDeadlock(deadlockEvery)) // looks only if something is held above
	}
	switch p := q.flags.permits; {
	case p.n > 0:
		return q.client.Semaphore(name, p.n, opts...).Locker(p.k)
	case q.flags.shared:
		return q.client.RWMutex(name, opts...).RLocker()
	}
	return q.client.Mutex(name, opts...)
}

// deadlockEvery is how often a nested run that waits looks for a deadlock. A look reads all queues
// of the store, and a cycle has no other end.
const deadlockEvery = 5 * time.Second

// exclusive reports whether waiting for the name while holding it is a deadlock.
func (f *lockFlags) exclusive() bool { return f.permits.n == 0 }

// errWaitOver is the cause of the end of --wait. A plain deadline is not enough: a store's client
// library may run into its own deadline, and that is an outage, not a busy lock.
var errWaitOver = errors.New("the wait is over")

// run gets the lock, or returns a failure that says why not.
//
// A job that is skipped where another machine does it must not be skipped on all of them because
// their store has just been restarted: so it waits until the quarantine is over, and tries again. A
// store that then says so once more has lost its memory again, and each time may be followed by
// another; the job is not kept by that for longer than the first quarantine and a little.
//
// A try on a store without a clock (kube, s3) that finds a holder which looks dead waits until that
// is certain, for the holder's TTL, if that is not longer than ours. It goes on then where the
// attempt before has ended: the client remembers since when it has seen the holder unchanged.
func (q *acquisition) run(ctx context.Context) (*commandLease, error) {
	var end time.Time
	for {
		held, err := q.once(ctx)
		if err != nil && q.unsure.Swap(false) && exit.Of(err).Outcome == exit.OutcomeUnreachable {
			continue
		}
		var refused *hasp.BusyError
		if err == nil || !q.outlast || !errors.Is(err, hasp.ErrQuarantine) || !errors.As(err, &refused) {
			return held, err
		}
		left := refused.Quarantine
		if end.IsZero() {
			end = time.Now().Add(left + answerBound)
		} else if time.Now().After(end) {
			return nil, err
		}
		say := q.report.detail // cron would send a mail
		if q.app.tty {
			say = q.report.say
		}
		say("%q is not granted yet: %v; trying again then", view.Clean(title(q.names)), refused)
		q.report.write(record{Event: "waiting", Message: refused.Error()})
		if !sleep(ctx, left) {
			return nil, exit.Of(interruption(ctx, err))
		}
	}
}

func (q *acquisition) once(ctx context.Context) (*commandLease, error) {
	// A background holder above that is stopped does not answer for a while: that is no time of the
	// wait, in which the store has not been asked for anything yet.
	if began := time.Now(); !q.flags.noWait && !q.until.IsZero() {
		q.app.above()
		q.until = q.until.Add(time.Since(began))
	}
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
	case errors.Is(err, hasp.ErrDeadlock):
		return nil, exit.Misconfigured("%w; this one gives up, so that the others go on: take the locks in the same order everywhere, or all at once with -l", err)
	case errors.Is(err, hasp.ErrBusy), context.Cause(wctx) == errWaitOver:
		return nil, q.busy(ctx, err)
	}
	return nil, exit.Of(interruption(ctx, err))
}

// checkNested refuses to wait for oneself: for one of the locks that are wanted, or, where one of
// several is, for all of them.
func (q *acquisition) checkNested(ctx context.Context) (err error) {
	for _, name := range q.names {
		err = q.app.checkNested(ctx, q.client, name, q.flags.shared)
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
// gone by now; then the message says so and names no one.
//
// A lock is busy only if the store has said so, by "taken" or "waits" to a request of this wait, or
// by the look: to a job that is skipped where another does it, busy is a success. A store that
// answers reads and takes no entry (its tables are locked, its replica is away) has said nothing,
// and what ended the wait is its silence, or its refusal.
func (q *acquisition) busy(ctx context.Context, err error) error {
	queue, lerr := q.look(ctx, err)
	var waited *hasp.BusyError // which has looked, too
	// We are no holder, though the store may have us as one by now: its answer did not come.
	holder := slices.ContainsFunc(queue.Holders, func(e hasp.Entry) bool { return !isMe(e) }) ||
		errors.As(err, &waited) && waited.ID != "" && !isMe(hasp.Entry{Owner: waited.Holder})
	text := fmt.Sprintf("%q held by another", view.Clean(queue.Name))
	if lerr == nil {
		text = view.HeldBy(queue, isMe, time.Now())
	}
	if q.any {
		text = fmt.Sprintf("none of %d was granted; %s", len(q.names), text)
	}
	if !q.flags.noWait {
		text += "; waited " + view.Brief(time.Since(q.report.began))
	}
	switch {
	case errors.As(err, &waited) && !waited.LooksOver.IsZero():
		// No success for --skip-ok: each run would find the same, and the job never be done.
		cure := "a longer --wait takes it when that is certain"
		if q.flags.noWait {
			cure = "its TTL is longer than ours: --wait takes it when that is certain"
		}
		return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeUncertain, Err: fmt.Errorf("busy: %s; %s", text, cure)}
	case holder || errors.Is(err, hasp.ErrBusy):
	case errors.Is(err, hasp.ErrRefused):
		return exit.Of(err)
	case queue.Quarantine > 0:
		return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeQuarantine, Err: errors.New(text)}
	case !q.report.waits.Load():
		return exit.Of(interruption(ctx, err))
	}
	return &exit.Failure{Code: exit.CodeBusy, Outcome: exit.OutcomeBusy, Err: fmt.Errorf("busy: %s", text)}
}

// look asks who holds the lock that err is about. A store that does not answer soon may have
// answered while we waited.
func (q *acquisition) look(ctx context.Context, err error) (hasp.Queue, error) {
	name := q.names[0]
	var which *hasp.LockError
	if errors.As(err, &which) {
		name = which.Name // of several
	}
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	queue, err := q.client.Inspect(ctx, name)
	if err == nil {
		return queue, nil
	}
	q.silent = true
	if seen := q.seen.Load(); seen != nil {
		return *seen, nil
	}
	return hasp.Queue{Name: name}, err
}

const (
	watchAfter = 2 * time.Second // a person begins to wonder
	watchEvery = 2 * time.Second
)

// watch shows who holds the lock and how many are ahead, and on a terminal shows it again whenever
// that changes; a log gets one line. It polls instead of following the name: one waiter that a
// person looks at costs the store a request every two seconds. stop returns when nothing more is
// printed.
//
// A try that takes so long may wait for a holder that looks dead: then it says so, once.
func (q *acquisition) watch(ctx context.Context) (stop func()) {
	if q.hidden || !q.flags.noWait && (q.report.quiet || q.report.json) {
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
			q.seen.Store(&queue)
			if q.flags.noWait {
				unsure := len(queue.Holders) > 0 && !queue.Holders[0].LooksOver.IsZero()
				if q.unsure.Store(unsure); unsure && shown == "" {
					shown = "unsure"
					q.report.say("waiting until it is certain that the holder is gone: %s; the store is %s", view.HeldBy(queue, isMe, time.Now()), q.report.store)
				}
				continue
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
	if len(q.Holders)+len(q.Waiters) == 0 && q.Quarantine == 0 {
		return key, fmt.Sprintf("waiting: %q is free, and the store has not answered the request for it", view.Clean(q.Name))
	}
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
