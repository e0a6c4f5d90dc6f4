package broken

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Flaws in the wake-ups.
var wakeControls = []Control{
	{
		Name: "misses what changed before it listened",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			// The subscription begins here; there is no check whether the entry has begun to hold
			// since the answer of Enqueue.
			return t.ask(ctx, t.changes(ctx, 2))
		}),
		Seen: []string{"Contract/ChangeBeforeWait"},
	},
	{
		Name: "watches the predecessor alone",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			ahead := t.predecessor(ctx)
			for ctx.Err() == nil {
				if v, err := t.ask(ctx, nil); err != nil || v.Held && ahead == "" {
					return v, err
				}
				if now := t.entries(ctx); !slices.Contains(now, ahead) {
					return t.ask(ctx, nil)
				}
				if err := change(ctx, t.b, t.r.Name); err != nil {
					return driver.Verdict{}, err
				}
			}
			return driver.Verdict{}, ctx.Err()
		}),
		Seen: []string{"Semaphore/AnyHolderLeaves", "Agreement/Table", "ReadWrite/Batch"},
	},
	{
		Name: "loses every wake-up",
		Flaw: waiting(func(_ *waiter, ctx context.Context) (driver.Verdict, error) {
			<-ctx.Done()
			return driver.Verdict{}, ctx.Err()
		}),
		Seen: []string{"Exclusion/Counter/mutex", "FIFO/Order/mutex", "Contract/ChangeBeforeWait", "Contract/WaiterOfClosedSession", "Semaphore/Weighted"},
	},
	{
		Name: "wakes everybody",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			return t.ask(ctx, t.changes(ctx, 2))
		}),
		Seen: []string{"Push/NoHerd", "Push/QuitterWakesNobody", "Push/BatchOnly"},
	},
	{
		Name: "asks to be asked all the time",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket { return &asking{g} }},
		Seen: []string{"Push/NoPolling", "Cost/Idle"},
	},
	{
		Name: "polls inside of Wait",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			for {
				t.entries(ctx)
				if v, err := t.ask(ctx, nil); err != nil || v.Held {
					return v, err
				}
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return driver.Verdict{}, ctx.Err()
				}
			}
		}),
		Seen: []string{"Push/NoPolling", "Cost/Idle"},
	},
	{
		Name: "returns late from a wait that was cancelled",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			v, err := t.fullTicket.Wait(ctx)
			if ctx.Err() != nil {
				time.Sleep(time.Second)
			}
			return v, err
		}),
		Seen: []string{"Contract/WaitEndsWithContext", "Cancel/Waiting/mutex"},
	},
	{
		Name: "swallows the end of the context",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			v, err := t.fullTicket.Wait(ctx)
			if ctx.Err() != nil {
				return v, errors.New("not acquired")
			}
			return v, err
		}),
		Seen: []string{"Contract/WaitEndsWithContext"},
	},
	{
		Name: "remembers at an Enqueue alone what it waits for",
		Flaw: Flaw{ticket: func(b fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &onceChecked{waiter: waiter{fullTicket: g, b: b, r: r}}
		}},
		Seen: []string{"Contract/WaitAgain"},
	},
	{
		Name: "takes a queue that it has not seen for empty",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
			return &answeredLate{fullTicket: g, unanswered: func() (driver.Verdict, error) {
				return driver.Verdict{Held: true, Token: invented.Add(1)}, nil
			}}
		}},
		Seen: []string{"Contract/WaitUnanswered"},
	},
	{
		Name: "says gone of an entry that is about to be made",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
			return &answeredLate{fullTicket: g, unanswered: func() (driver.Verdict, error) { return driver.Verdict{}, driver.ErrGone }}
		}},
		Seen: []string{"Contract/WaitUnanswered"},
	},
	{
		Name: "asks ninety times a second while it watches a holder that is older than a TTL",
		Flaw: Flaw{watch: func(b fullBackend, ctx context.Context, name string, changed func()) error {
			go func() {
				for older := 0; ctx.Err() == nil; time.Sleep(time.Second / 90) {
					if older++; older > 90*60 { // the suite's TTL is a minute
						_, _ = b.List(ctx, name, 1)
					}
				}
			}()
			return b.Watch(ctx, name, changed)
		}},
		Seen: []string{"Cost/Idle"},
	},
	{
		Name: "tells a watch ninety times a second that nothing has changed",
		Flaw: Flaw{watch: func(b fullBackend, ctx context.Context, name string, changed func()) error {
			go func() {
				for ; ctx.Err() == nil; time.Sleep(time.Second / 90) {
					changed()
				}
			}()
			return b.Watch(ctx, name, changed)
		}},
		Seen: []string{"Cost/Idle"},
	},
	{
		Name: "watches deafly",
		Flaw: Flaw{watch: func(b fullBackend, ctx context.Context, name string, changed func()) error {
			first := sync.OnceFunc(changed)
			return b.Watch(ctx, name, first)
		}},
		Seen: []string{"Contract/Watch", "Election/Observe"},
	},
	{
		Name: "tells a watch of no release",
		Flaw: Flaw{watch: func(b fullBackend, ctx context.Context, name string, changed func()) error {
			began := false
			return b.Watch(ctx, name, func() {
				if all, err := b.List(ctx, name, 1); !began || err != nil || len(all) > 0 {
					changed()
				}
				began = true
			})
		}},
		Seen: []string{"Contract/Watch"},
	},
	{
		Name: "watches beyond its context",
		Flaw: Flaw{watch: func(b fullBackend, ctx context.Context, name string, changed func()) error {
			defer time.Sleep(45 * time.Minute) // longer than the suite waits
			return b.Watch(ctx, name, changed)
		}},
		Seen: []string{"Contract/Watch"},
	},
	{
		Name: "waits beyond the end of its session",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			v, err := t.fullTicket.Wait(ctx)
			if err != nil {
				time.Sleep(45 * time.Minute)
			}
			return v, err
		}),
		Seen: []string{"Contract/WaiterOfClosedSession"},
	},
	{
		Name: "leaves a goroutine behind for every wait",
		Flaw: waiting(func(t *waiter, ctx context.Context) (driver.Verdict, error) {
			go time.Sleep(45 * time.Minute) // longer than the suite looks, twice
			return t.fullTicket.Wait(ctx)
		}),
		Seen: []string{"Leaks/Cycles"},
	},
}

// waiting is a flaw of Wait.
func waiting(wait func(*waiter, context.Context) (driver.Verdict, error)) Flaw {
	return Flaw{ticket: func(b fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
		return &waiter{g, b, r, wait}
	}}
}

type waiter struct {
	fullTicket
	b    fullBackend
	r    driver.Request
	wait func(*waiter, context.Context) (driver.Verdict, error)
}

func (t *waiter) Wait(ctx context.Context) (driver.Verdict, error) { return t.wait(t, ctx) }

// onceChecked looks at its entry in the first wait after each Enqueue; the others see only what changes while they last.
type onceChecked struct {
	waiter
	waited atomic.Bool
}

func (t *onceChecked) Enqueue(ctx context.Context) (driver.Verdict, error) {
	t.waited.Store(false)
	return t.fullTicket.Enqueue(ctx)
}

func (t *onceChecked) Wait(ctx context.Context) (driver.Verdict, error) {
	if !t.waited.Swap(true) {
		return t.fullTicket.Wait(ctx)
	}
	return t.ask(ctx, t.changes(ctx, 2))
}

// answeredLate makes its entry after a millisecond, also when the context has ended by then, and answers a Wait before that without the store.
type answeredLate struct {
	fullTicket
	entered    atomic.Bool
	unanswered func() (driver.Verdict, error)
}

func (t *answeredLate) Enqueue(ctx context.Context) (driver.Verdict, error) {
	var v driver.Verdict
	done := make(chan error, 1) // one slot: the caller may have gone
	go func() {
		time.Sleep(time.Millisecond)
		var err error
		v, err = t.fullTicket.Enqueue(context.WithoutCancel(ctx))
		t.entered.Store(true)
		done <- err
	}()
	select {
	case err := <-done:
		return v, err
	case <-ctx.Done():
		return driver.Verdict{}, ctx.Err()
	}
}

func (t *answeredLate) Wait(ctx context.Context) (driver.Verdict, error) {
	if !t.entered.Load() {
		return t.unanswered()
	}
	return t.fullTicket.Wait(ctx)
}

// ask asks the store, unless something has failed before.
func (t *waiter) ask(ctx context.Context, err error) (driver.Verdict, error) {
	if err != nil {
		return driver.Verdict{}, err
	}
	return t.fullTicket.Enqueue(ctx)
}

// changes waits for the n-th call of a watch; the first comes when the watch stands.
func (t *waiter) changes(ctx context.Context, n int) error {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := t.b.Watch(wctx, t.r.Name, func() {
		if n--; n == 0 {
			cancel()
		}
	})
	if ctx.Err() == nil {
		return nil
	}
	return err
}

func (t *waiter) entries(ctx context.Context) []string {
	entries, _ := t.b.List(ctx, t.r.Name, 0)
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.ID)
	}
	return ids
}

func (t *waiter) predecessor(ctx context.Context) string {
	entries := t.entries(ctx)
	if i := slices.Index(entries, t.r.ID); i > 0 {
		return entries[i-1]
	}
	return ""
}

// asking wants to be asked again ten times a second.
type asking struct{ fullTicket }

func (t *asking) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Enqueue(ctx)
	v.Retry = 100 * time.Millisecond
	return v, err
}
