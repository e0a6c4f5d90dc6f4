package programs

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// run is one program at work.
type run struct {
	*suite
	p      Program
	at     []Store
	prefix string // of its names, which are its own
	ctx    context.Context
	cancel context.CancelFunc

	machines  []*machine
	operators []*hasp.Client // one for each store, on a connection without faults
	jobs      sync.WaitGroup

	mu        sync.Mutex
	moment    int // counts what begins and what is granted: an order that needs no clock
	holds     []*hold
	pending   []*acquisition
	evicted   map[string]bool    // by id
	values    map[string]*values // by id
	grants    map[string]string  // the first id of a grant, by each that it has been handed on under
	used      []map[feature]int
	all       map[feature]int // what concerns a client, and so each of the names
	faulty    bool            // a fault has been at work
	disturbed bool            // one of the store's
	undo      []func()
	failure   *failure
}

// machine is a client and its connection.
type machine struct {
	Client
	client *hasp.Client
	conn   *conn
	closed bool // guarded by run.mu
	shaken bool // the same: a fault was at work on it
}

// run runs a program and returns what was wrong, nil if nothing.
func (s *suite) run(p Program) *failure {
	r := &run{
		suite: s, p: p, prefix: "programs/" + strings.ToLower(rand.Text()[:12]) + "/",
		evicted: map[string]bool{}, grants: map[string]string{}, values: map[string]*values{}, all: map[feature]int{},
	}
	r.at = s.Stores()
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for range p.Names {
		r.used = append(r.used, map[feature]int{})
	}
	r.connect()
	for i, step := range p.Steps {
		time.Sleep(step.Wait)
		r.step(i, step)
		r.settle()
		r.checkWoken()
		if r.failed() {
			break
		}
	}
	r.finish()
	if r.failure == nil {
		r.cover()
	}
	return r.failure
}

// connect opens the clients.
func (r *run) connect() {
	for _, c := range r.p.Clients {
		m := &machine{Client: c, conn: r.at[c.Store].connect(r.tb)}
		opts := []hasp.Option{hasp.WithTTL(c.TTL)}
		if c.Guard > 0 {
			opts = append(opts, hasp.WithGuard(c.Guard))
		}
		var err error
		if m.client, err = hasp.New(connected(m.conn), opts...); err != nil {
			r.tb.Fatalf("new client: %v", err)
		}
		r.machines = append(r.machines, m)
	}
	for i := range r.stores {
		c, err := hasp.New(r.at[i].Open(r.tb), hasp.WithTTL(r.base))
		if err != nil {
			r.tb.Fatalf("new client: %v", err)
		}
		r.operators = append(r.operators, c)
	}
}

// settle lets everything happen that can happen now. In real time nobody knows what that is, and
// things overlap.
func (r *run) settle() {
	if r.fake {
		synctest.Wait()
	}
}

func (r *run) failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure != nil
}

// fail notes the first fault. The program still comes to its end, for what it has begun.
func (r *run) failLocked(kind, format string, args ...any) {
	if r.failure == nil {
		r.failure = &failure{kind, fmt.Sprintf(format, args...)}
	}
}

func (r *run) fail(kind, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(kind, format, args...)
}

func (r *run) name(i int) string { return fmt.Sprintf("%s%d", r.prefix, i) }

func (r *run) capacity(name int) int64 {
	if n := r.p.Names[name].Permits; n > 0 {
		return n
	}
	return driver.Whole
}

// use notes that a feature was at work on a name; -1 for all of them.
func (r *run) use(name int, fs ...feature) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.useLocked(name, fs...)
}

func (r *run) useLocked(name int, fs ...feature) {
	at := r.all
	if name >= 0 {
		at = r.used[name]
	}
	for _, f := range fs {
		at[f]++
	}
}

func (r *run) cover() {
	r.covers.mu.Lock()
	r.covers.programs++
	r.covers.mu.Unlock()
	for _, used := range r.used {
		if len(used) == 0 {
			continue
		}
		for f, n := range r.all {
			used[f] += n
		}
		r.covers.add(r.order, used)
	}
}

// finish ends the faults, releases everything, and looks whether all who wait are served and
// nothing is left.
func (r *run) finish() {
	r.mu.Lock()
	undo := r.undo
	r.undo = nil
	r.mu.Unlock()
	for _, u := range undo {
		u()
	}
	for _, m := range r.machines {
		m.conn.heal()
	}
	r.mu.Lock()
	for _, a := range r.pending {
		if slices.ContainsFunc(a.machines, func(m *machine) bool { return m.conn.isDead() }) {
			a.cancel() // nobody waits there any more
		}
	}
	r.mu.Unlock()
	if r.traits.Liveness != driver.Leased {
		for _, m := range r.machines {
			m.conn.revive() // a dead process loses its connection, which this one still has
		}
	}
	r.serveAll()
	r.cancel()
	r.jobs.Wait()
	for _, m := range r.machines {
		if err := m.client.Close(); err != nil {
			r.fail("close", "close of a client: %v", err)
		}
	}
	for _, m := range r.machines {
		m.conn.underWay.Wait()
	}
	r.checkEmpty()
	for _, c := range r.operators {
		if err := c.Close(); err != nil {
			r.fail("close", "close of an operator's client: %v", err)
		}
	}
}

// serveAll releases what is held until nobody waits any more.
func (r *run) serveAll() {
	r.mu.Lock()
	bound := time.Duration(len(r.pending)+3) * r.bound()
	r.mu.Unlock()
	for end := time.Now().Add(bound); ; r.rest() {
		r.mu.Lock()
		held := slices.DeleteFunc(slices.Clone(r.holds), func(h *hold) bool { return h.over })
		waiting := len(r.pending)
		r.mu.Unlock()
		for _, h := range held {
			r.release(h)
		}
		if waiting == 0 && len(held) == 0 {
			return
		}
		if time.Now().After(end) {
			if waiting > 0 {
				r.fail("L2: somebody waits for ever", "%d wait after %s, with everything released and no fault:\n%s", waiting, bound, r.queues())
			}
			return
		}
	}
}

// bound is the time in which somebody must get a lock that is free, with faults just over: L2,
// and what holders may ask for by their options and faults delay.
func (r *run) bound() time.Duration {
	most := r.base
	for _, m := range r.machines {
		most = max(most, m.TTL)
	}
	for _, s := range r.p.Steps {
		if s.Do == LateRequests {
			most = max(most, s.Time)
		}
	}
	bound := 2*most + 2*most/3 + 2*time.Second
	if !r.fake {
		bound += 20 * time.Second
	}
	return bound
}

// rest is a pause between two looks.
func (r *run) rest() {
	time.Sleep(r.base / 50)
	r.settle()
}

// checkEmpty demands that nothing is left in the stores. What a dead machine had goes with its
// TTL.
func (r *run) checkEmpty() {
	end := time.Now().Add(r.bound())
	for i := range r.p.Names {
		for _, c := range r.operators {
			for {
				q, err := c.Inspect(context.Background(), r.name(i))
				if err == nil && len(q.Holders)+len(q.Waiters) == 0 {
					break
				}
				if time.Now().After(end) {
					r.fail("L4: something is left", "after all clients are closed: %+v, %v", q, err)
					return
				}
				r.rest()
			}
		}
	}
}

// checkWoken demands, as long as there was no fault, that whoever holds by the store knows it.
// Only fake time can tell that somebody sleeps.
func (r *run) checkWoken() {
	r.mu.Lock()
	skip := !r.fake || r.faulty || len(r.pending) == 0
	r.mu.Unlock()
	if skip {
		return
	}
	for i := range r.p.Names {
		for store, c := range r.operators {
			q, err := c.Inspect(context.Background(), r.name(i))
			if err != nil {
				r.fail("inspect", "inspect: %v", err)
				return
			}
			for _, e := range q.Holders {
				if a := r.asleep(e.Owner.Note, store); a != nil {
					r.fail("L2: a holder was not woken", "%s holds by the store, and still waits:\n%s", e.Owner.Note, r.queues())
				}
			}
		}
	}
}

func (r *run) asleep(note string, store int) *acquisition {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.pending {
		if a.note == note && a.machine.Store == store && len(a.claims) == 1 {
			return a
		}
	}
	return nil
}

// queues shows what is in the stores, and who waits.
func (r *run) queues() string {
	var b strings.Builder
	for i := range r.p.Names {
		for store, c := range r.operators {
			q, err := c.Inspect(context.Background(), r.name(i))
			fmt.Fprintf(&b, "name %d at store %d:", i, store)
			for _, e := range q.Holders {
				fmt.Fprintf(&b, " holds %s (%s, units %d, token %d)", e.Owner.Note, e.ID, e.Units, e.Token)
			}
			for _, e := range q.Waiters {
				fmt.Fprintf(&b, " waits %s (%s, units %d, token %d)", e.Owner.Note, e.ID, e.Units, e.Token)
			}
			if err != nil {
				fmt.Fprintf(&b, " %v", err)
			}
			b.WriteByte('\n')
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.pending {
		fmt.Fprintf(&b, "step %s of client %d has not returned\n", a.note, a.client)
	}
	return b.String()
}
