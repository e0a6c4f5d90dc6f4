package programs

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

// run is a running program.
type run struct {
	*suite
	p      Program
	at     []Store
	prefix string // of its names, which no other program uses
	ctx    context.Context
	cancel context.CancelFunc

	machines  []*machine
	operators []*hasp.Client // of the stores, in their order
	jobs      sync.WaitGroup

	mu       sync.Mutex
	moment   int // counts beginnings and grants: an order that needs no clock
	holds    []*hold
	pending  []*acquisition
	evicted  map[string]bool    // by id, and by grantKey
	values   map[string]*values // by id
	used     []map[feature]int
	all      map[feature]int // what concerns a client, and so each of the names
	faulty   bool            // a fault has been at work
	stranded bool            // a client that gave up may have left an entry, which goes when it expires (L4)
	undo     []func()
	failure  *failure
}

// machine is a client and its connection.
type machine struct {
	Client
	client *hasp.Client
	conn   *conn
	closed bool // guarded by run.mu
	shaken bool // the same: a fault was applied to it
}

// run runs a program and returns the fault, nil if there is none.
func (s *suite) run(p Program) *failure {
	r := &run{
		suite: s, p: p, prefix: "programs/" + strings.ToLower(rand.Text()[:12]) + "/",
		evicted: map[string]bool{}, values: map[string]*values{}, all: map[feature]int{},
	}
	r.at = s.Stores()
	r.ctx, r.cancel = context.WithCancel(context.Background())
	for range p.Names {
		r.used = append(r.used, map[feature]int{})
	}
	r.operators = s.operators
	if s.fake { // in a bubble every goroutine starts and ends inside
		r.operators = s.openOperators(s.tb, r.at)
		defer closeOperators(s.tb, r.operators)
	}
	r.connect()
	for i, step := range p.Steps {
		time.Sleep(step.Wait)
		r.step(i, step)
		r.settle()
		if r.fake && !r.proxied { // a network delays an answer
			r.checkWoken()
		}
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

// connect opens the clients. In real time only a few programs do so at once: at the start all of
// them connect, and a server with a thousand new connections makes some wait too long.
func (r *run) connect() {
	if !r.fake {
		r.connecting <- struct{}{}
		defer func() { <-r.connecting }()
	}
	for _, c := range r.p.Clients {
		m := &machine{Client: c, conn: r.at[c.Store].connect(r.tb)}
		m.conn.slow(c.Slow)
		opts := []hasp.Option{hasp.WithTTL(c.TTL), hasp.WithObserver(unheard{})}
		if c.Margin > 0 {
			opts = append(opts, hasp.WithSafetyMargin(c.Margin))
		}
		var err error
		if m.client, err = hasp.New(connected(m.conn), opts...); err != nil {
			r.tb.Fatalf("new client: %v", err)
		}
		r.machines = append(r.machines, m)
	}
}

// settle lets everything happen that can happen now. In real time that cannot be known, and
// operations overlap.
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

// fail records the first fault. The program still runs to its end, to finish what it has begun.
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

// use records that a feature was used on a name; -1 for all of them.
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
