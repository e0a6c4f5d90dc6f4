//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

// model is the expected state of the queues: a list for each name, and driver.Decide. The test
// drives random histories through the files, in which sessions die between operations and
// in the middle of them, at any write.
type model struct {
	t         *testing.T
	rng       *rand.Rand
	backend   *backend
	names     []string
	processes []*process
	actor     *process // whose operation it is
	queues    map[string][]*modelEntry
	ids       int
	last      map[string]uint64 // the highest seq ever seen of a name

	emptyPage0 func()
}

// process is a session of a separate backend, as a process has it.
type process struct {
	backend driver.Backend
	session *session
}

// modelEntry is an entry that its owner knows to be in the queue.
type modelEntry struct {
	*ticket
	process *process
	held    bool // as its owner was told
}

// died is the panic of an operation that is killed.
type died struct{}

// colliding returns names that share a queue file.
func colliding(n int) []string {
	names := []string{"first"}
	want := newKey(names[0]).file()
	for i := 0; len(names) < n; i++ {
		if name := fmt.Sprintf("name-%d", i); newKey(name).file() == want {
			names = append(names, name)
		}
	}
	return names
}

func TestModel(t *testing.T) {
	defer func(d time.Duration) { safetyNet = d }(safetyNet)
	safetyNet = time.Hour // a wake-up that was lost must show
	names := colliding(3)
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			b, err := New(t.Context(), t.TempDir()+"/store", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			m := &model{
				t: t, rng: rand.New(rand.NewPCG(seed, 1)), backend: b.(*backend), names: names,
				queues: map[string][]*modelEntry{}, last: map[string]uint64{},
			}
			for range 4 {
				m.join()
			}
			if seed%2 == 1 { // the entries are in page 0 and behind it
				m.emptyPage0 = fill(t, m.backend.path, names[0])
			}
			for range 400 {
				m.step()
				m.check()
			}
			for len(m.processes) > 0 {
				m.kill(m.processes[0])
			}
			if m.emptyPage0 != nil {
				m.emptyPage0()
			}
			m.empty()
		})
	}
}

// fill takes all slots of page 0 but a few, in the queue file of a name, until it is called off.
func fill(t *testing.T, dir, name string) func() {
	t.Helper()
	s := openTestSession(t, dir)
	other := colliding(4)[3]
	if newKey(other).file() != newKey(name).file() {
		t.Fatal("another file")
	}
	for i := range firstSlots - 3 {
		r := mutexRequest(other, fmt.Sprint("filler-", i))
		r.Units = 1
		if _, err := s.Ticket(r).Enqueue(patient(t)); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		if err := s.Close(patient(t)); err != nil {
			t.Error(err)
		}
	}
}

func (m *model) join() {
	b, err := New(m.t.Context(), m.backend.path, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	s, _, err := b.Open(m.t.Context(), driver.SessionOptions{Gone: func(string, error) {}})
	if err != nil {
		m.t.Fatal(err)
	}
	m.processes = append(m.processes, &process{b, s.(*session)})
}

// kill ends a process without its doing anything about it.
func (m *model) kill(p *process) {
	p.session.timer.Stop()
	p.session.stop()
	p.session.store.drop(p.session)
	p.session.endLife(false)
	p.session.store.leave()
	if err := p.backend.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.processes = slices.DeleteFunc(m.processes, func(o *process) bool { return o == p })
	for name, q := range m.queues {
		m.queues[name] = slices.DeleteFunc(q, func(e *modelEntry) bool { return e.process == p })
	}
}

func (m *model) step() {
	m.ids++
	p := m.processes[m.rng.IntN(len(m.processes))]
	name := m.names[m.rng.IntN(len(m.names))]
	q := m.queues[name]
	// A name has one capacity as long as it has entries.
	capacity := []int64{driver.Whole, driver.Whole, 3, 5}[m.rng.IntN(4)]
	if len(q) > 0 {
		capacity = q[0].request.Capacity
	}
	units := 1 + m.rng.Int64N(min(capacity, 4))
	if capacity == driver.Whole && m.rng.IntN(2) == 0 {
		units = capacity
	}
	m.actor = p
	defer m.dieAt()()
	switch n := m.rng.IntN(20); {
	case n == 0:
		m.kill(p)
		m.join()
	case n < 11 && len(q) < 12:
		m.enter(p, driver.Request{
			Name: name, ID: fmt.Sprint("id-", m.ids), Units: units, Capacity: capacity,
			NoWait: m.rng.IntN(4) == 0, Since: time.Now(), Value: make([]byte, m.rng.IntN(maxValue)),
		})
	case n < 13 && len(q) > 0 && q[0].held && q[0].request.Units > 1:
		m.actor = q[0].process
		if err := q[0].Downgrade(context.Background(), 1+m.rng.Int64N(q[0].request.Units)); err != nil {
			m.t.Fatalf("downgrade: %v", err)
		}
	case len(q) > 0:
		e := q[m.rng.IntN(len(q))]
		m.actor = e.process
		m.queues[name] = slices.DeleteFunc(slices.Clone(q), func(o *modelEntry) bool { return o == e })
		if err := e.Leave(context.Background()); err != nil {
			m.t.Fatalf("leave: %v", err)
		}
	}
}

// dieAt has some operations killed at one of their writes. The process dies with that, so
// its other entries go too.
func (m *model) dieAt() (clear func()) {
	countdown := m.rng.IntN(20)
	// Goroutines of the sessions only read (inspect): all writes are this step's.
	setProbe(func(write bool) {
		if write {
			if countdown--; countdown == -1 {
				panic(died{})
			}
		}
	})
	return func() {
		probe.Store(nil)
		if x := recover(); x == nil {
			return
		} else if x != any(died{}) {
			panic(x)
		}
		m.kill(m.actor)
		m.join()
	}
}

func (m *model) enter(p *process, r driver.Request) {
	t := p.session.Ticket(r).(*ticket)
	ahead := m.ahead(m.queues[r.Name])
	v, err := t.Enqueue(context.Background())
	if err != nil {
		m.t.Fatalf("enqueue: %v", err)
	}
	held, _ := driver.Decide(ahead, r)
	// A death that the kernel is just telling of may still be in the way of a waiter, who is
	// woken then (see check). A try is not woken later, and must know.
	if v.Held && !held || held && !v.Held && r.NoWait {
		m.t.Fatalf("%d of %d behind %v: held %t", r.Units, r.Capacity, units(ahead), v.Held)
	}
	if r.NoWait && !held {
		return
	}
	if t.seq <= m.last[r.Name] || v.Held && v.Token != t.seq {
		m.t.Fatalf("seq %d after %d, token %d", t.seq, m.last[r.Name], v.Token)
	}
	m.last[r.Name] = t.seq
	m.queues[r.Name] = append(m.queues[r.Name], &modelEntry{ticket: t, process: p, held: v.Held})
}

func (m *model) ahead(q []*modelEntry) []driver.Entry {
	entries := make([]driver.Entry, len(q))
	for i, e := range q {
		entries[i].Request = e.request
	}
	return entries
}

func units(entries []driver.Entry) (u []int64) {
	for _, e := range entries {
		u = append(u, e.Units)
	}
	return u
}

// check compares the files with the model, and then goes through the waiters: one that
// holds by now must have been signalled, or be told of a death.
func (m *model) check() {
	m.t.Helper()
	for _, name := range m.names {
		q := m.queues[name]
		list, err := m.backend.List(context.Background(), name, 0)
		if err != nil {
			m.t.Fatal(err)
		}
		got, want := []string{}, []string{}
		for _, e := range list {
			got = append(got, e.ID)
		}
		for _, e := range q {
			want = append(want, e.request.ID)
		}
		if !slices.Equal(got, want) {
			m.t.Fatalf("%s: the file has %v, the model %v", name, got, want)
		}
		for i, e := range q {
			if held, _ := driver.Decide(m.ahead(q[:i]), e.request); held && !e.held {
				m.granted(e)
			}
		}
	}
	m.sound()
}

func (m *model) granted(e *modelEntry) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		v, err := e.Wait(ctx)
		if err != nil {
			m.t.Fatalf("%s holds and was not woken: %v", e.request.ID, err)
		}
		if v.Held {
			e.held = true
			return
		}
	}
}

// sound checks what is in no list of a name: no two records share a seq, and none above those that
// the header counts is needed.
func (m *model) sound() {
	m.t.Helper()
	s, err := m.backend.use(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	defer s.leave()
	q := s.file(newKey(m.names[0]))
	if err := q.lock(context.Background()); err != nil {
		m.t.Fatal(err)
	}
	defer q.unlock()
	seen := map[uint64]int{}
	for i, r := range q.records {
		if was, twice := seen[r.seq]; twice || r.seq > q.head().seq() {
			m.t.Fatalf("seq %d, after %d, is in slots %d and %d", r.seq, q.head().seq(), r.slot, was)
		}
		seen[r.seq] = r.slot
		if i == len(q.records)-1 && r.units == 0 {
			m.t.Fatalf("the header counts the free slot %d", r.slot)
		}
	}
}

// empty checks that the dead leave nothing: a sweep finds all of it.
func (m *model) empty() {
	s, err := m.backend.use(context.Background())
	if err != nil {
		m.t.Fatal(err)
	}
	defer s.leave()
	if err := s.sweep(context.Background()); err != nil {
		m.t.Fatal(err)
	}
	names, err := readDir(s.sessionsDir)
	if err != nil || len(names) > 0 {
		m.t.Errorf("session files after a sweep: %v, %v", names, err)
	}
	for _, q := range s.files {
		if err := q.lock(context.Background()); err != nil {
			m.t.Fatal(err)
		}
		if q.head().high() != 0 {
			m.t.Errorf("%s is not empty after a sweep", q.name)
		}
		q.unlock()
	}
}
