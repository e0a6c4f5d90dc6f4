package broken

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
)

// Flaws in the admission.
var grantControls = []Control{
	{
		Name: "grants twice",
		Flaw: Flaw{ticket: func(b fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &doubleGrant{g, b, r}
		}},
		Seen: []string{
			"Exclusion/Counter/mutex", "Exclusion/Counter/writer", "Exclusion/Counter/election", "Exclusion/Counter/drained",
			"Exclusion/Contend/mutex", "Agreement/Table", "ReadWrite/Mixed", "Semaphore/Permits", "Semaphore/Weighted", "Try/Busy/mutex",
		},
	},
	{
		Name: "uses tokens again after the queue was empty",
		Flaw: (&recount{whenEmpty: true}).flaw(),
		Seen: []string{"Tokens/AfterEmpty", "Tokens/Captured/mutex", "Contract/SeqGrows"},
	},
	{
		Name: "uses tokens again after a restart",
		Flaw: (&recount{}).flaw(),
		Seen: []string{"Tokens/AfterReopen"},
	},
	{
		Name: "serves the last first",
		Flaw: Flaw{ticket: func(b fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &barging{fullTicket: g, b: b, s: s, r: r}
		}},
		Seen: []string{"FIFO/Order/mutex", "FIFO/Order/drained", "Agreement/Table", "Contract/MiddleLeaves", "Semaphore/LargeNotStarved"},
	},
	{
		Name: "counts those who hold among those who wait",
		Flaw: places(func(v driver.Verdict, _ int) int { return v.Place + 1 }),
		Seen: []string{"FIFO/Place/mutex", "FIFO/Place/drained", "FIFO/PlaceOfReaders"},
	},
	{
		Name: "counts those who have left among those who wait",
		Flaw: places(func(_ driver.Verdict, entered int) int { return entered }),
		Seen: []string{"FIFO/Place/mutex", "FIFO/Place/election"},
	},
	{
		Name: "lets readers barge past a waiting writer",
		Flaw: Flaw{ticket: func(b fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			if r.Units == 1 {
				return g
			}
			return &barging{fullTicket: g, b: b, s: s, r: r} // so it stands in no queue
		}},
		Seen: []string{"ReadWrite/WriterNotStarved"},
	},
	{
		Name: "downgrades by leaving and queueing again",
		Flaw: Flaw{ticket: func(_ fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &requeueing{fullTicket: g, s: s, r: r}
		}},
		Seen: []string{"Holding/Downgrade", "Holding/DowngradeBehind"},
	},
	{
		Name: "downgrades without letting the readers in",
		Flaw: Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
			return &lonely{g}
		}},
		Seen: []string{"Holding/Downgrade"},
	},
	{
		Name: "publishes what it was before it was downgraded",
		Flaw: Flaw{ticket: func(_ fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &forgetful{fullTicket: g, s: s, r: r}
		}},
		Seen: []string{"Holding/DowngradeKeeps"},
	},
	{
		Name: "folds the case of names",
		Flaw: Flaw{request: rename(strings.ToLower)},
		Seen: []string{"Names/Traps"},
	},
	{
		Name: "cuts names at 64 bytes",
		Flaw: Flaw{request: rename(func(n string) string { return n[:min(len(n), 64)] })},
		Seen: []string{"Names/Traps"},
	},
	{
		Name: "takes names for paths",
		Flaw: Flaw{request: rename(func(n string) string { return path.Clean("/" + n) })},
		Seen: []string{"Names/Traps"},
	},
	{
		Name: "lists names by a pattern",
		Flaw: Flaw{names: func(b fullBackend, prefix string) (names []string) {
			_ = b.Names(context.Background(), "", func(n string) bool {
				if like(n, prefix) {
					names = append(names, n)
				}
				return true
			})
			return names
		}},
		Seen: []string{"Names/Listed"},
	},
	{
		Name: "keeps a queue for each capacity",
		Flaw: Flaw{request: func(r driver.Request) driver.Request {
			if r.Capacity != driver.Whole {
				r.Name = fmt.Sprintf("%s/%d", r.Name, r.Capacity)
			}
			return r
		}},
		Seen: []string{"Contract/Mismatch", "Input/Mismatch"},
	},
	{
		Name: "makes another entry when asked again",
		Flaw: Flaw{ticket: func(_ fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &another{fullTicket: g, s: s, r: r}
		}},
		Seen: []string{"Contract/SameIDTwice", "Ambiguous/Enqueue/mutex", "Ambiguous/Try"},
	},
}

func rename(to func(string) string) func(driver.Request) driver.Request {
	return func(r driver.Request) driver.Request {
		if r.Name != "" {
			r.Name = to(r.Name)
		}
		return r
	}
}

// like is SQL's LIKE prefix || '%', as far as one '_' goes.
func like(name, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if prefix[i] != '_' && prefix[i] != name[i] {
			return false
		}
	}
	return true
}

// doubleGrant takes every refusal for a grant.
type doubleGrant struct {
	fullTicket
	b fullBackend
	r driver.Request
}

func (t *doubleGrant) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Enqueue(ctx)
	if err == nil && !v.Held {
		v = driver.Verdict{Held: true, Token: 1}
		entries, _ := t.b.List(ctx, t.r.Name, 0)
		if i := slices.IndexFunc(entries, func(e driver.Entry) bool { return e.ID == t.r.ID }); i >= 0 {
			v.Token = entries[i].Seq
		}
	}
	return v, err
}

// recount counts from one whenever the store restarts, or whenever a queue begins.
type recount struct {
	whenEmpty bool

	mu   sync.Mutex
	base map[string]uint64 // what the store's own tokens began with, by name
}

func (c *recount) flaw() Flaw {
	return Flaw{
		reopen: func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			clear(c.base)
		},
		ticket: func(b fullBackend, _ driver.Session, g fullTicket, r driver.Request) driver.Ticket {
			return &recounted{g, b, r, c}
		},
	}
}

type recounted struct {
	fullTicket
	b fullBackend
	r driver.Request
	c *recount
}

func (t *recounted) token(v driver.Verdict, err error) (driver.Verdict, error) {
	if !v.Held {
		return v, err
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	if t.c.base == nil {
		t.c.base = map[string]uint64{}
	}
	entries, _ := t.b.List(context.Background(), t.r.Name, 0)
	if first := len(entries) == 1 && t.c.whenEmpty; first || t.c.base[t.r.Name] == 0 {
		t.c.base[t.r.Name] = v.Token - 1
	}
	v.Token -= t.c.base[t.r.Name]
	return v, err
}

func (t *recounted) Enqueue(ctx context.Context) (driver.Verdict, error) {
	return t.token(t.fullTicket.Enqueue(ctx))
}

func (t *recounted) Wait(ctx context.Context) (driver.Verdict, error) {
	return t.token(t.fullTicket.Wait(ctx))
}

// barging does not queue: it tries whenever something changes, and the last to come is the fastest.
type barging struct {
	fullTicket
	b fullBackend
	s driver.Session
	r driver.Request
}

var arrivals atomic.Int64

func (t *barging) Enqueue(ctx context.Context) (driver.Verdict, error) {
	r := t.r
	r.NoWait = true
	t.fullTicket = t.s.Ticket(r).(fullTicket)
	return t.fullTicket.Enqueue(ctx)
}

func (t *barging) Wait(ctx context.Context) (driver.Verdict, error) {
	pause := time.Second / time.Duration(arrivals.Add(1))
	for {
		if err := change(ctx, t.b, t.r.Name); err != nil {
			return driver.Verdict{}, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		}
		if v, err := t.Enqueue(ctx); err != nil || v.Held {
			return v, err
		}
	}
}

// places has a waiter told another place. entered is how many have had to wait in the store so far.
func places(place func(v driver.Verdict, entered int) int) Flaw {
	var entered atomic.Int64
	return Flaw{ticket: func(_ fullBackend, _ driver.Session, g fullTicket, _ driver.Request) driver.Ticket {
		return &misplaced{g, func(v driver.Verdict) int { return place(v, int(entered.Add(1))) }}
	}}
}

type misplaced struct {
	fullTicket
	place func(driver.Verdict) int
}

func (t *misplaced) Enqueue(ctx context.Context) (driver.Verdict, error) {
	v, err := t.fullTicket.Enqueue(ctx)
	if err == nil && !v.Held {
		v.Place = t.place(v)
	}
	return v, err
}

// change waits until the name changes, or has just changed.
func change(ctx context.Context, b fullBackend, name string) error {
	ctx2, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	calls := 0
	err := b.Watch(ctx2, name, func() {
		if calls++; calls > 1 {
			cancel()
		}
	})
	if ctx.Err() == nil {
		return nil
	}
	return err
}

// another enters once more whenever it is asked.
type another struct {
	fullTicket
	s     driver.Session
	r     driver.Request
	asked int
}

func (t *another) Enqueue(ctx context.Context) (driver.Verdict, error) {
	if t.asked++; t.asked > 1 {
		t.fullTicket = t.s.Ticket(t.r).(fullTicket)
	}
	return t.fullTicket.Enqueue(ctx)
}

// requeueing makes a writer a reader by way of the end of the queue.
type requeueing struct {
	fullTicket
	s driver.Session
	r driver.Request
}

func (t *requeueing) Downgrade(ctx context.Context, units int64) error {
	if err := t.Leave(ctx); err != nil {
		return err
	}
	r := t.r
	r.ID, r.Units = r.ID+"-again", units
	t.fullTicket = t.s.Ticket(r).(fullTicket)
	_, err := t.Enqueue(ctx)
	return err
}

// lonely says that it has downgraded.
type lonely struct{ fullTicket }

func (t *lonely) Downgrade(context.Context, int64) error { return nil }

// forgetful writes the whole entry anew when it publishes, as it was requested.
type forgetful struct {
	fullTicket
	s driver.Session
	r driver.Request
}

func (t *forgetful) Publish(ctx context.Context, value []byte) error {
	if err := t.Leave(ctx); err != nil {
		return err
	}
	r := t.r
	r.Value = value
	t.fullTicket = t.s.Ticket(r).(fullTicket)
	_, err := t.Enqueue(ctx)
	return err
}
