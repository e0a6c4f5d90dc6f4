package caslock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// simulation is a store in fake time, whose clients' networks and wall clocks do what a test says. At
// each write it judges: who believes to hold, may the holder's record end now, was its end told?
type simulation struct {
	ttl time.Duration

	mu       sync.Mutex
	revision uint64
	changed  chan struct{} // closed at the next write
	records  map[string]*simulated
	leases   map[string][]*hasp.Lease // all that were granted and are believed, by name
	left     map[string]bool          // IDs of entries whose own client has given them back
	gone     map[string]bool          // IDs whose end was told to their own client
	hosts    map[string]*host         // whose an ID is
	wrong    []string
	grants   int
}

// simulated is a record, and when the write was sent that has given it its TTL.
type simulated struct {
	Record
	revision uint64
	sent     time.Time
}

func newSimulation(ttl time.Duration) *simulation {
	return &simulation{ttl: ttl, records: map[string]*simulated{}, leases: map[string][]*hasp.Lease{}, left: map[string]bool{}, gone: map[string]bool{}, hosts: map[string]*host{}, changed: make(chan struct{})}
}

func (s *simulation) violation(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

// fate says how far one request gets.
type fate struct {
	out, back time.Duration // the ways; negative: it gets no further
	again     time.Duration // a proxy delivers it a second time so long after; 0: it does not
	fails     bool          // the answer is a failure that says nothing: 502
	deaf      bool          // the library does not look at the context
}

const never = time.Duration(-1)

// host is one client's machine: its wall clock, and its way to the store.
type host struct {
	*simulation
	name  string
	watch bool // versions are numbers, and changes are told

	mu   sync.Mutex
	step time.Duration // of the wall clock so far
	puts int           // writes so far
	fate func(op, name string) fate
	down chan struct{} // closed at the end: what hangs returns

	clock clock
	faulty
}

// faulty are the planted faults of the driver.
type faulty struct {
	believesWall   bool          // its own time is counted by the wall clock
	tellsLate      time.Duration // the end of an entry is told so much later
	forgetsPending bool          // an entry whose Enqueue is not answered is not named late
}

func (s *simulation) host(name string, watch bool, f faulty) *host {
	h := &host{simulation: s, name: name, watch: watch, faulty: f, down: make(chan struct{})}
	h.fate = func(string, string) fate { return fate{} }
	h.clock = machine
	h.clock.wall = func() time.Time {
		h.mu.Lock()
		defer h.mu.Unlock()
		return time.Now().Add(h.step)
	}
	if began := time.Now(); f.believesWall {
		h.clock.now = func() bootclock.Instant {
			return bootclock.Instant{At: time.Now(), Boot: time.Hour + h.clock.wall().Sub(began)}
		}
	}
	return h
}

func (h *host) setFate(f func(op, name string) fate) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fate = f
}

func (h *host) writes() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.puts
}

func (h *host) setClock(by time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.step += by
}

// client is one of hasp's on this machine.
func (h *host) client(t *testing.T) (*hasp.Client, *backend) {
	var store Store = h
	if h.watch {
		store = watchedHost{h}
	}
	b := New(store, &Options{Poll: time.Second}).(*backend)
	b.clock = h.clock
	c, err := hasp.New(&judged{b, h}, hasp.WithTTL(h.ttl))
	if err != nil {
		t.Fatal(err)
	}
	return c, b
}

// lock takes a lock, and has it judged until the lease is given back.
func (h *host) lock(ctx context.Context, c *hasp.Client, name string) (*hasp.Lease, error) {
	l, err := c.Mutex(name).Lock(ctx)
	if err != nil {
		return nil, err
	}
	h.simulation.mu.Lock()
	defer h.simulation.mu.Unlock()
	h.leases[name] = append(h.leases[name], l)
	h.grants++
	return l, nil
}

// judged is the driver as the judge sees it: it knows what was given back, and what was told.
type judged struct {
	*backend
	host *host
}

func (j *judged) Open(ctx context.Context, o driver.SessionOptions) (driver.Session, time.Duration, error) {
	gone := o.Gone
	o.Gone = func(id string, err error) {
		tell := func() {
			j.host.simulation.mu.Lock()
			j.host.gone[id] = true
			j.host.simulation.mu.Unlock()
			gone(id, err)
		}
		if j.host.tellsLate > 0 {
			time.AfterFunc(j.host.tellsLate, tell)
			return
		}
		tell()
	}
	s, granted, err := j.backend.Open(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	return &judgedSession{s, s.(*session), j.host}, granted, nil
}

type judgedSession struct {
	driver.Session
	session *session
	host    *host
}

func (s *judgedSession) Ticket(r driver.Request) driver.Ticket {
	s.host.simulation.mu.Lock()
	defer s.host.simulation.mu.Unlock()
	s.host.hosts[r.ID] = s.host
	return &judgedTicket{s.Session.Ticket(r).(*ticket), s.host}
}

func (s *judgedSession) Close(ctx context.Context) error {
	s.session.mu.Lock()
	s.host.simulation.mu.Lock()
	for id := range s.session.tickets {
		s.host.left[id] = true
	}
	s.host.simulation.mu.Unlock()
	s.session.mu.Unlock()
	return s.Session.Close(ctx)
}

func (s *judgedSession) KeepAlive(ctx context.Context) (time.Duration, error) {
	granted, err := s.Session.KeepAlive(ctx)
	var partial *driver.PartialRenewal
	if !s.host.forgetsPending || !errors.As(err, &partial) {
		return granted, err
	}
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	for id := range partial.Late {
		if t := s.session.tickets[id]; t == nil || t.wasHeld() {
			return granted, err
		}
	}
	return partial.Granted, nil
}

type judgedTicket struct {
	*ticket
	host *host
}

func (t *judgedTicket) Leave(ctx context.Context) error {
	t.host.simulation.mu.Lock()
	t.host.left[t.request.ID] = true
	t.host.simulation.mu.Unlock()
	return t.ticket.Leave(ctx)
}

// carry brings a request to the store and its answer back.
func carry[T any](ctx context.Context, h *host, op, name string, do func() T) (T, error) {
	h.mu.Lock()
	f := h.fate(op, name)
	if op == "swap" {
		h.puts++
	}
	h.mu.Unlock()
	wait := func(d time.Duration) bool {
		var over <-chan time.Time
		if d >= 0 {
			if d == 0 {
				return true
			}
			timer := time.NewTimer(d)
			defer timer.Stop()
			over = timer.C
		}
		select {
		case <-over:
			return true
		case <-h.down:
			return false
		}
	}
	type result struct {
		v   T
		err error
	}
	answer := make(chan result, 1)
	go func() {
		var none T
		if !wait(f.out) {
			answer <- result{none, errCut}
			return
		}
		if f.fails {
			answer <- result{none, errors.New("502 Bad Gateway")}
			return
		}
		v := do()
		if f.again > 0 && wait(f.again) {
			v = do() // the client gets the answer to the second
		}
		if !wait(f.back) {
			answer <- result{none, errCut}
			return
		}
		answer <- result{v, nil}
	}()
	over := ctx.Done()
	if f.deaf {
		over = nil
	}
	select {
	case r := <-answer:
		return r.v, r.err
	case <-over:
		var none T
		return none, ctx.Err()
	}
}

var errCut = errors.New("the connection is cut")

func (h *host) String() string { return "simulated " + h.name }
func (h *host) Close() error   { return nil }

func (h *host) version(s *simulated) Version {
	if h.watch {
		return Version(strconv.FormatUint(s.revision, 10))
	}
	return Version(s.Nonce)
}

func (h *host) Load(ctx context.Context, name string) (Record, Version, error) {
	type read struct {
		r Record
		v Version
	}
	got, err := carry(ctx, h, "load", name, func() read {
		h.simulation.mu.Lock()
		defer h.simulation.mu.Unlock()
		if s := h.records[name]; s != nil {
			return read{s.Record, h.version(s)}
		}
		return read{}
	})
	return got.r, got.v, err
}

func (h *host) Swap(ctx context.Context, r Record, old Version) (Version, error) {
	sent := time.Now()
	now, err := carry(ctx, h, "swap", r.Name, func() Version {
		h.simulation.mu.Lock()
		s := h.records[r.Name]
		if s == nil && old != Absent || s != nil && h.version(s) != old {
			h.simulation.mu.Unlock()
			return Absent
		}
		h.revision++
		next := &simulated{r, h.revision, sent}
		h.records[r.Name] = next
		close(h.changed)
		h.changed = make(chan struct{})
		h.simulation.mu.Unlock()
		h.judge(s, next)
		return h.version(next)
	})
	if err == nil && now == Absent {
		err = ErrConflict
	}
	return now, err
}

// judge looks at a write that was done just now.
func (h *host) judge(before, after *simulated) {
	if before == nil || before.ID == "" || before.ID == after.ID {
		return
	}
	h.simulation.mu.Lock()
	left, told := h.left[before.ID], h.gone[before.ID]
	own := h.hosts[before.ID] == h
	leases := h.leases[after.Name]
	h.simulation.mu.Unlock()
	by := after.ID
	if by == "" {
		by = "none"
	}
	if age := time.Since(before.sent); !left && age < h.ttl {
		h.violation("%s: after %s the record of %s is that of %s", after.Name, age, before.ID, by)
	}
	if after.ID == "" && !left && !told && own {
		h.violation("%s: the record of %s is freed before its end is told", after.Name, before.ID)
	}
	var believed []*hasp.Lease
	for _, l := range leases {
		if l.Held() {
			believed = append(believed, l)
		}
	}
	if len(believed) > 0 {
		h.violation("%s: the record of %s is that of %s, and %d believe to hold", after.Name, before.ID, by, len(believed))
	}
	h.simulation.mu.Lock()
	h.leases[after.Name] = believed
	h.simulation.mu.Unlock()
}

func (h *host) List(ctx context.Context, prefix string, yield func(Record, Version) bool) error {
	all, err := carry(ctx, h, "list", prefix, func() (all []string) {
		h.simulation.mu.Lock()
		defer h.simulation.mu.Unlock()
		for name := range h.records {
			if strings.HasPrefix(name, prefix) {
				all = append(all, name)
			}
		}
		return all
	})
	for _, name := range all {
		if !yield(Record{Name: name}, Absent) {
			break
		}
	}
	return err
}

// watchedHost is one whose store counts its versions and tells of changes.
type watchedHost struct{ *host }

func (h watchedHost) Number(v Version) (uint64, error) { return strconv.ParseUint(string(v), 10, 64) }

func (h watchedHost) Watch(ctx context.Context, name string, changed func(Record, Version)) error {
	last := Version("none")
	for {
		h.simulation.mu.Lock()
		news := h.simulation.changed
		h.simulation.mu.Unlock()
		r, v, err := h.Load(ctx, name)
		if err != nil {
			return err
		}
		if v != last {
			last = v
			changed(r, v)
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
