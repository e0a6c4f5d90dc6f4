package drivertest

import (
	"bytes"
	"context"
	"errors"

	"github.com/hasplock/hasp"
)

var electionTests = needing(needsValues, []test{
	{name: "Terms", run: testTerms},
	{name: "Values", run: testValues},
	{name: "Observe", run: testObserve},
	{name: "ObserveEnds", run: testObserveEnds},
})

// S1, S7: one leads, and every client can see which and the value that it published; after it
// resigned the next leads, and the old value no longer counts.
func testTerms(e *env) {
	name, ctx := e.name(), e.ctx()
	a, b, onlooker := e.client(), e.client(), e.client()
	_, err := e.leader(onlooker, name)
	e.wantErr("leader of an unused name", err, hasp.ErrNotFound)

	first, err := a.Election(name).Campaign(ctx, []byte("a at first"))
	if err != nil {
		e.Fatalf("campaign: %v", err)
	}
	e.leads(onlooker, name, first, "a at first")
	if err := e.once(first.Publish(ctx, []byte("a again"))); err != nil {
		e.Errorf("publish: %v", err)
	}
	e.leads(onlooker, name, first, "a again")

	second, waiting := e.candidate(b, name, "b")
	waiting.blocked("another leads")
	e.leads(onlooker, name, first, "a again")
	if err := first.Release(ctx); err != nil {
		e.Errorf("resign: %v", err)
	}
	waiting.lease()
	e.leads(onlooker, name, *second, "b")
	if e.traits.Fencing && (*second).Token() <= first.Token() {
		e.violated("token %d after %d", (*second).Token(), first.Token())
	}
	e.wantErr("publish after resigning", first.Publish(ctx, []byte("a")), hasp.ErrNotHeld)
	e.wantErr("second resignation", first.Release(ctx), hasp.ErrNotHeld)
	e.leads(onlooker, name, *second, "b")
	if err := (*second).Release(ctx); err != nil {
		e.Errorf("resign: %v", err)
	}
	_, err = e.leader(onlooker, name)
	e.wantErr("leader after the last resigned", err, hasp.ErrNotFound)
}

// candidate campaigns behind another candidate. The term is available when the attempt has ended.
func (e *env) candidate(c *client, name, value string) (**hasp.Term, *attempt) {
	e.Helper()
	term := new(*hasp.Term)
	return term, c.queue(func(ctx context.Context) (*hasp.Lease, error) {
		t, err := c.Election(name).Campaign(ctx, []byte(value))
		if err != nil {
			return nil, err
		}
		*term = t
		return t.Lease, nil
	})
}

// leader asks who leads.
func (e *env) leader(onlooker *client, name string) (hasp.Entry, error) {
	l, err := onlooker.Election(name).Leader(e.ctx())
	return l, e.once(err)
}

// leads requires that this term is seen to lead with this value.
func (e *env) leads(onlooker *client, name string, t *hasp.Term, value string) {
	e.Helper()
	l, err := e.leader(onlooker, name)
	if err != nil || l.ID != t.ID() || l.Token != t.Token() || string(l.Value) != value {
		e.Errorf("leader %+v with value %q, %v; want %s with token %d and value %q", l, l.Value, err, t.ID(), t.Token(), value)
	}
}

// A value is any bytes, up to 1 KB.
func testValues(e *env) {
	name, c := e.name(), e.client()
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	values := [][]byte{nil, {}, {0}, []byte("'; DROP TABLE x; --"), all, bytes.Repeat(all, 4)}
	for _, v := range values {
		term, err := c.Election(name).Campaign(e.ctx(), v)
		if err != nil {
			e.Fatalf("campaign with %d bytes: %v", len(v), err)
		}
		e.leads(c, name, term, string(v))
		for _, v := range values {
			if err := e.once(term.Publish(e.ctx(), v)); err != nil {
				e.Errorf("publish %d bytes: %v", len(v), err)
			}
			e.leads(c, name, term, string(v))
		}
		if err := term.Release(e.ctx()); err != nil {
			e.Fatalf("resign: %v", err)
		}
	}
}

// observation is an Observe under way.
type observation struct {
	env   *env
	seen  chan hasp.Entry // closed when Observe has ended
	stop  context.CancelFunc
	known map[string]bool // IDs that may be seen to lead; "" is no leader
}

func (e *env) observe(c *client, name string) *observation {
	ctx, stop := context.WithCancel(e.ctx())
	o := &observation{env: e, seen: make(chan hasp.Entry), stop: stop, known: map[string]bool{"": true}}
	go func() {
		defer close(o.seen)
		for l, err := range c.Election(name).Observe(ctx) {
			if err != nil {
				if ctx.Err() == nil {
					e.slowIfUnknown(err)
					e.Errorf("observe: %v", err)
				}
				continue
			}
			select {
			case o.seen <- l:
			case <-ctx.Done():
			}
		}
	}()
	return o
}

// until waits until this leader has been seen with this value.
func (o *observation) until(id, value string) {
	o.env.Helper()
	o.known[id] = true
	for l := range o.seen {
		if !o.known[l.ID] {
			o.env.Fatalf("observed an unknown leader: %+v", l)
		}
		if l.ID == id && string(l.Value) == value {
			return
		}
	}
	o.env.Fatalf("never observed %q with value %q", id, value) // patience has ended it
}

// Changes may be folded, but the last one is always seen, and an observed leader always existed.
func testObserve(e *env) {
	name, ctx := e.name(), e.ctx()
	a, b := e.client(), e.client()
	o := e.observe(e.client(), name)
	defer o.stop()
	o.until("", "")
	first, err := a.Election(name).Campaign(ctx, []byte("1"))
	if err != nil {
		e.Fatalf("campaign: %v", err)
	}
	o.until(first.ID(), "1")
	for _, v := range []string{"2", "3", "4", "last"} {
		if err := e.once(first.Publish(ctx, []byte(v))); err != nil {
			e.Fatalf("publish: %v", err)
		}
	}
	o.until(first.ID(), "last")
	second, waiting := e.candidate(b, name, "b")
	e.release(first.Lease)
	waiting.lease()
	o.until((*second).ID(), "b")
	if err := b.Close(); err != nil {
		e.Fatalf("close: %v", err)
	}
	o.until("", "")
	o.stop()
	for range o.seen {
	}
}

// Observing ends with its context, with that error, and with the loop that ranges over it.
func testObserveEnds(e *env) {
	name, c := e.name(), e.client()
	ctx, cancel := context.WithCancel(e.ctx())
	defer cancel()
	var last error
	yields := 0
	for l, err := range c.Election(name).Observe(ctx) {
		yields++
		if last = err; err == nil && l.ID != "" {
			e.Errorf("observed %+v where no client leads", l)
		}
		cancel()
	}
	if yields != 2 || !errors.Is(last, context.Canceled) {
		e.Errorf("%d yields, the last with error %v; want the state and the end of the context", yields, last)
	}
	for range c.Election(name).Observe(e.ctx()) {
		break
	}
}
