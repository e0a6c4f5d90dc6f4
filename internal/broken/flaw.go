package broken

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/memlock"
)

// Control is memlock with one flaw that some lock in the world has had, and the tests of
// package drivertest that must notice it.
type Control struct {
	Name string
	Flaw Flaw
	Seen []string // by each of these tests, as THEME/TEST
}

// Controls are all of them.
func Controls() []Control {
	return slices.Concat(
		grantControls, idControls, transferControls, leaveControls, wakeControls, sessionControls, expiryControls, administerControls,
	)
}

// Flaw describes how a control differs from a correct driver. A nil field is correct.
type Flaw struct {
	open    func(fullBackend, driver.SessionOptions) driver.SessionOptions
	session func(fullBackend, driver.SessionOptions, driver.Session) driver.Session
	request func(driver.Request) driver.Request
	ticket  func(b fullBackend, s driver.Session, g fullTicket, r driver.Request) driver.Ticket
	names   func(fullBackend, string) []string
	reopen  func()
	watch   func(b fullBackend, ctx context.Context, name string, changed func()) error
	evict   func(b fullBackend, ctx context.Context, name, id, note string) error
	list    func(all []driver.Entry, limit int) []driver.Entry

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

// fullBackend has all methods of memlock's backend, fullTicket all of its tickets.
type fullBackend interface {
	driver.Backend
	driver.Namer
	driver.Watcher
	driver.Evicter
}

type fullTicket interface {
	driver.Ticket
	driver.Publisher
	driver.Downgrader
	driver.Adopter
}

// Store is a store of memlock's whose driver has a flaw.
type Store struct {
	flaw   Flaw
	store  *memlock.Store
	schema version

	requests atomic.Int64
}

// Store makes one. The flaw of none is a driver without a flaw.
func (f Flaw) Store() *Store { return &Store{flaw: f, store: memlock.New()} }

// Open is a connection to it.
func (s *Store) Open() driver.Backend {
	return &flawed{fullBackend: s.connect(), flaw: s.flaw, schema: &s.schema}
}

func (s *Store) connect() fullBackend {
	return counted{s.store.Backend().(fullBackend), &s.requests}
}

// Counted is Open, and how many requests the connection has sent so far.
func (s *Store) Counted() (b driver.Backend, sent func() int64) {
	n := new(atomic.Int64)
	return &flawed{fullBackend: counted{s.connect(), n}, flaw: s.flaw, schema: &s.schema}, n.Load
}

// Reopen is a restart of the store. memlock forgets nothing while it lives; a flaw may.
func (s *Store) Reopen() {
	if s.flaw.reopen != nil {
		s.flaw.reopen()
	}
}

// Requests counts those that have reached the store.
func (s *Store) Requests() int64 { return s.requests.Load() }

// counted counts the requests that go through it.
type counted struct {
	fullBackend
	requests *atomic.Int64
}

func (c counted) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	c.requests.Add(1)
	return c.fullBackend.List(ctx, name, limit)
}

func (c counted) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	s, granted, err := c.fullBackend.Open(ctx, o)
	return countedSession{s, c.requests}, granted, err
}

type countedSession struct {
	driver.Session
	requests *atomic.Int64
}

func (s countedSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	s.requests.Add(1)
	return s.Session.KeepAlive(ctx)
}

func (s countedSession) Ticket(r driver.Request) driver.Ticket {
	return countedTicket{s.Session.Ticket(r).(fullTicket), s.requests}
}

type countedTicket struct {
	fullTicket
	requests *atomic.Int64
}

func (t countedTicket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	t.requests.Add(1)
	return t.fullTicket.Enqueue(ctx)
}

// flawed is a backend with a flaw.
type flawed struct {
	fullBackend
	flaw   Flaw
	schema *version
}

func (b *flawed) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	asked := o.TTL
	if b.flaw.open != nil {
		o = b.flaw.open(b.fullBackend, o)
	}
	s, _, err := b.fullBackend.Open(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	fs := &flawedSession{Session: s, b: b}
	if b.flaw.session != nil {
		fs.Session = b.flaw.session(b.fullBackend, o, s)
	}
	return fs, asked, nil
}

func (b *flawed) Names(ctx context.Context, prefix string, yield func(string) bool) error {
	if b.flaw.names == nil {
		return b.fullBackend.Names(ctx, prefix, yield)
	}
	for _, n := range b.flaw.names(b.fullBackend, prefix) {
		if !yield(n) {
			break
		}
	}
	return nil
}

func (b *flawed) Watch(ctx context.Context, name string, changed func()) error {
	if b.flaw.watch == nil {
		return b.fullBackend.Watch(ctx, name, changed)
	}
	return b.flaw.watch(b.fullBackend, ctx, name, changed)
}

func (b *flawed) Evict(ctx context.Context, name, id, note string) error {
	if b.flaw.evict == nil {
		return b.fullBackend.Evict(ctx, name, id, note)
	}
	return b.flaw.evict(b.fullBackend, ctx, name, id, note)
}

func (b *flawed) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	name = b.inner(driver.Request{Name: name}).Name
	if b.flaw.list == nil {
		return b.fullBackend.List(ctx, name, limit)
	}
	all, err := b.fullBackend.List(ctx, name, 0)
	return b.flaw.list(all, limit), err
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

func (b *flawed) Warnings(context.Context) ([]driver.Finding, error) { return nil, nil }

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
	g := s.Session.Ticket(r).(fullTicket)
	if s.b.flaw.ticket == nil {
		return g
	}
	return s.b.flaw.ticket(s.b.fullBackend, s.Session, g, r)
}
