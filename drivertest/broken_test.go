package drivertest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// A check that cannot fail is a defect. Each control is memlock with one flaw that some
// lock in the world has had, and the tests that must notice. They run on it as they run
// on a driver; only their verdict is turned round.
type control struct {
	name string
	flaw flaw
	seen []string // by each of these tests
}

// flaw is what a control does differently. What is nil is done right.
type flaw struct {
	open    func(full, driver.SessionOptions) driver.SessionOptions
	session func(full, driver.SessionOptions, driver.Session) driver.Session
	request func(driver.Request) driver.Request
	ticket  func(b full, s driver.Session, g grip, r driver.Request) driver.Ticket
	names   func(full, string) []string
	reopen  func()
	watch   func(b full, ctx context.Context, name string, changed func()) error
	evict   func(b full, ctx context.Context, name, id, note string) error
	list    func(all []driver.Entry, limit int) []driver.Entry

	identity func(string) string
	migrate  func(schema *version) (from, to int, err error)
	diagnose func() []driver.Finding
}

// version is that of the tables, if memlock had any.
type version struct {
	sync.Mutex
	now int
}

const newest = 3

// migrate is how it is done right.
func (v *version) migrate() (from, to int, err error) {
	v.Lock()
	defer v.Unlock()
	from, v.now = v.now, newest
	return from, v.now, nil
}

// full is everything a backend of memlock can do, grip everything its tickets can.
type full interface {
	driver.Backend
	driver.Namer
	driver.Watcher
	driver.Recorder
	driver.Evicter
	driver.Identifier
}

type grip interface {
	driver.Ticket
	driver.Publisher
	driver.Downgrader
	driver.Adopter
}

// recorder takes a test's verdict instead of the testing package.
type recorder struct {
	testing.TB
	mu     sync.Mutex
	failed bool
	words  []string
}

func (r *recorder) say(failed bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = r.failed || failed
	r.words = append(r.words, strings.TrimSpace(text))
}

func (r *recorder) Helper()                   {}
func (r *recorder) Log(a ...any)              { r.say(false, fmt.Sprintln(a...)) }
func (r *recorder) Logf(f string, a ...any)   { r.say(false, fmt.Sprintf(f, a...)) }
func (r *recorder) Error(a ...any)            { r.say(true, fmt.Sprintln(a...)) }
func (r *recorder) Errorf(f string, a ...any) { r.say(true, fmt.Sprintf(f, a...)) }
func (r *recorder) Fail()                     { r.say(true, "Fail") }
func (r *recorder) Fatal(a ...any)            { r.Error(a...); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) FailNow()                  { r.Fail(); runtime.Goexit() }
func (r *recorder) Skip(a ...any)             { r.Log(a...); runtime.Goexit() }
func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

// judge runs one test of the suite against a harness and returns what it said.
func judge(t *testing.T, x test, h Harness) *recorder {
	r := &recorder{}
	t.Run(x.name, func(t *testing.T) {
		x.within(t, h, func(t *testing.T) {
			r.TB = t
			if h.FakeTime {
				// Runs last, when the clients are closed: what a control has started ends by
				// then, and what the suite itself had forgotten would fail the bubble.
				t.Cleanup(func() { time.Sleep(time.Hour) })
			}
			done := make(chan struct{})
			go func() { // on a goroutine of its own, which Fatal may end
				defer close(done)
				x.test(r, h)
			}()
			<-done
		})
	})
	return r
}

// find returns the test called THEME/TEST.
func find(t *testing.T, name string) test {
	t.Helper()
	for _, th := range themes() {
		for _, x := range th.tests {
			if th.name+"/"+x.name == name {
				return x
			}
		}
	}
	t.Fatalf("the suite has no test %q", name)
	return test{}
}

// TestControls is the proof that the suite can fail.
func TestControls(t *testing.T) {
	for _, c := range slices.Concat(
		grantControls, handOffControls, leaveControls, wakeControls, sessionControls, expiryControls, administerControls,
	) {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range c.seen {
				x := find(t, name)
				r := judge(t, x, c.flaw.harness())
				if !r.failed {
					t.Errorf("%s did not notice; it said: %q", name, r.words)
				}
			}
		})
	}
}

// TestSound is the counter-check: without a flaw the same wrapping passes, so that what
// TestControls sees are the flaws.
func TestSound(t *testing.T) {
	for _, th := range themes() {
		for _, x := range th.tests {
			if x.processes {
				continue
			}
			if r := judge(t, x, flaw{}.harness()); r.failed {
				t.Errorf("%s/%s: %q", th.name, x.name, r.words)
			}
		}
	}
}

// harness serves a flaw from a store of its own.
func (f flaw) harness() Harness {
	store := memlock.New()
	served, schema := new(atomic.Int64), new(version)
	return Harness{
		Reopen: func(testing.TB) { // memlock forgets nothing while it lives
			if f.reopen != nil {
				f.reopen()
			}
		},
		Open: func(testing.TB) driver.Backend {
			return &flawed{full: counted{store.Backend().(full), served}, flaw: f, schema: schema}
		},
		TTL:      time.Minute,
		FakeTime: true,
		Ops:      served.Load,
	}
}

// counted counts the reads that reach the store.
type counted struct {
	full
	served *atomic.Int64
}

func (c counted) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	c.served.Add(1)
	return c.full.List(ctx, name, limit)
}

// flawed is a backend with a flaw.
type flawed struct {
	full
	flaw   flaw
	schema *version
}

func (b *flawed) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	asked := o.TTL
	if b.flaw.open != nil {
		o = b.flaw.open(b.full, o)
	}
	s, _, err := b.full.Open(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	fs := &flawedSession{Session: s, b: b}
	if b.flaw.session != nil {
		fs.Session = b.flaw.session(b.full, o, s)
	}
	return fs, asked, nil
}

func (b *flawed) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if b.flaw.names == nil {
		return b.full.Names(ctx, prefix, yield)
	}
	for _, n := range b.flaw.names(b.full, prefix) {
		if !yield(n) {
			break
		}
	}
	return nil
}

func (b *flawed) Watch(ctx context.Context, name string, changed func()) error {
	if b.flaw.watch == nil {
		return b.full.Watch(ctx, name, changed)
	}
	return b.flaw.watch(b.full, ctx, name, changed)
}

func (b *flawed) EvictFor(ctx context.Context, name, id, note string) error {
	if b.flaw.evict == nil {
		return b.full.EvictFor(ctx, name, id, note)
	}
	return b.flaw.evict(b.full, ctx, name, id, note)
}

func (b *flawed) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	name = b.inner(driver.Request{Name: name}).Name
	if b.flaw.list == nil {
		return b.full.List(ctx, name, limit)
	}
	all, err := b.full.List(ctx, name, 0)
	return b.flaw.list(all, limit), err
}

func (b *flawed) Identity(ctx context.Context) (string, error) {
	id, err := b.full.Identity(ctx)
	if b.flaw.identity != nil {
		id = b.flaw.identity(id)
	}
	return id, err
}

func (b *flawed) Schema() string { return "CREATE TABLE entries (name TEXT)" }

func (b *flawed) Migrate(ctx context.Context) (from, to int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	if b.flaw.migrate == nil {
		return b.schema.migrate()
	}
	return b.flaw.migrate(b.schema)
}

func (b *flawed) Diagnose(context.Context) ([]driver.Finding, error) {
	if b.flaw.diagnose == nil {
		return []driver.Finding{{Level: driver.Info, Subject: "store", Text: "in memory"}}, nil
	}
	return b.flaw.diagnose(), nil
}

func (b *flawed) inner(r driver.Request) driver.Request {
	if b.flaw.request == nil {
		return r
	}
	return b.flaw.request(r)
}

type flawedSession struct {
	driver.Session
	b *flawed
}

func (s *flawedSession) Ticket(r driver.Request) driver.Ticket {
	r = s.b.inner(r)
	g := s.Session.Ticket(r).(grip)
	if s.b.flaw.ticket == nil {
		return g
	}
	return s.b.flaw.ticket(s.b.full, s.Session, g, r)
}
