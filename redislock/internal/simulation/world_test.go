package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// world has the servers and the clients of one run. Its lock is held for as long as a request is
// executed, and for no call into a client.
type world struct {
	config
	edits []edit // planted in the scripts
	in    *interpreter

	groups []int            // the servers of a cluster's slots, by their remainders
	owners map[uint16]int   // of the slots that have moved
	moved  map[uint16]int64 // and after how many promotions

	mu      sync.Mutex
	ids     int
	reigns  int64 // how often a replica was promoted
	epoch   int64 // see fakeEpoch
	servers []*server
	clients []*client
	subs    []*subscription
	held    []*delayed
	over    bool // the run has ended
	trace   func(format string, args ...any)

	checks
}

// edit replaces a part of a script.
type edit struct{ from, to string }

// delayed is a request that has not arrived, or an answer that has not.
type delayed struct {
	*request
	arrived bool
	replies []redisconn.Reply
}

// subscription is a client's at one server.
type subscription struct {
	client  *client
	server  *server
	channel string
	message func(string)
	broken  chan struct{}
	over    bool
}

func newWorld(c config, in *interpreter, edits []edit) *world {
	w := &world{config: c, epoch: fakeEpoch, in: in, edits: edits, owners: map[uint16]int{}, moved: map[uint16]int64{}, trace: func(string, ...any) {}}
	for i := range c.servers {
		w.servers = append(w.servers, newServer(w, i))
	}
	for i := range c.cluster {
		w.groups = append(w.groups, i)
	}
	for i, s := range w.servers[max(1, c.cluster):] {
		s.attach(w.servers[i%max(1, c.cluster)])
	}
	return w
}

func (w *world) topology() redisconn.Topology {
	if w.cluster > 0 {
		return redisconn.Cluster
	}
	return redisconn.Single
}

// slot is that of its keys.
func (r *request) slot() uint16 {
	if len(r.calls[0].Keys) == 0 {
		return 0
	}
	return slotOf(r.calls[0].Keys[0])
}

// leads is the server that a request goes to by its client's knowledge.
func (w *world) leads(r *request) *server {
	return w.servers[r.client.leads(r.slot())]
}

// arrive has a request reach a server: with at nil the one that the client's address leads to. ctx
// is the caller's, who waits for the replicas.
func (w *world) arrive(ctx context.Context, r *request, at *server) []redisconn.Reply {
	o := w.execute(r, at)
	switch {
	case redisconn.Answered(o.replies[0].Err) == "MOVED":
		w.learnSlot(r)
		o = w.execute(r, nil)
	case redisconn.Replica(o.replies[0].Err): // as redisconn does: it has done nothing
		w.hangUp(r.client)
		o = w.execute(r, nil)
	}
	if r.replicas > 0 && o.reign != "" {
		w.confirm(ctx, o, r.replicas)
	}
	return o.replies
}

// learnSlot has a client learn where a slot is.
func (w *world) learnSlot(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot := r.slot()
	r.client.slots[slot] = w.owner(slot)
}

// outcome has the answers to a request. target is the write that WAIT waits for: the last one of the
// connection, and since Redis 7.2 scripts that write nothing leave that at an older one, which all
// replicas have.
type outcome struct {
	server  *server
	reign   string // "": it was not executed
	target  int64
	replies []redisconn.Reply
}

// execute runs a request's scripts.
func (w *world) execute(r *request, at *server) *outcome {
	w.mu.Lock()
	o := &outcome{server: at}
	if at == nil {
		o.server = w.leads(r)
	}
	s := o.server
	w.countLocked(r.client)
	if !s.alive {
		w.mu.Unlock()
		o.replies = r.all(redisconn.Reply{Err: errRefused})
		return o
	}
	if no := s.redirects(r.slot()); no != "" {
		w.mu.Unlock()
		o.replies = r.all(redisconn.Reply{Err: no})
		return o
	}
	s.tick()
	w.noteOldMaster(s)
	o.reign = s.reign()
	var to []*subscription
	var texts []string
	for _, call := range r.calls {
		s.counts["evalsha"]++
		e := &execution{server: s, now: s.now(), noInfo: r.client.noInfo, dbIndex: r.client.db}
		reply := w.in.run(e, w.text(r.script), call.Keys, call.Args)
		o.replies = append(o.replies, reply)
		if e.wrote {
			s.written()
			o.target = s.offset
		} else if r.replicas > 0 && reply.Err == nil && counts(r.script, call, reply.Value) {
			w.later("confirms nothing", "%s is told %v of %q, and the script has written nothing that replicas could have", r.client, reply.Value, call.Args)
		}
		w.trace("    %s at %d: %v %q -> %v %v", r.client, s.n, call.Keys, call.Args, reply.Value, reply.Err)
		for _, m := range e.published {
			for _, sub := range w.subs {
				if sub.hears(s, m.channel) {
					to, texts = append(to, sub), append(texts, m.text)
				}
			}
		}
	}
	w.mu.Unlock()
	for i, sub := range to {
		sub.message(texts[i])
	}
	return o
}

// countLocked counts requests, and finds a client that asks without end while no time passes. It is
// cut off, so that the run goes on.
func (w *world) countLocked(c *client) {
	if now := time.Now(); c.asked != now {
		c.asked, c.atOnce = now, 0
	}
	if c.requests, c.atOnce = c.requests+1, c.atOnce+1; c.atOnce == 300 {
		c.cut = true
		w.later("spins", "%s has sent %d requests in no time", c, c.atOnce)
	}
}

// later reports a violation when the caller has given up the world's lock.
func (w *world) later(kind, format string, args ...any) {
	go func() {
		w.record.Lock()
		defer w.record.Unlock()
		w.reportLocked(kind, format, args...)
	}()
}

// text is the script with what is planted in it.
func (w *world) text(s *redisconn.Script) string {
	if len(w.edits) == 0 {
		return s.Text()
	}
	text := s.Text()
	for _, e := range w.edits {
		text = strings.ReplaceAll(text, e.from, e.to)
	}
	return text
}

// reign tells one reign of one process from others.
func (s *server) reign() string { return fmt.Sprint(s.runID, s.reigns) }

// confirm is WAIT. It ends with the reign: Redis says UNBLOCKED, or has ended.
func (w *world) confirm(ctx context.Context, o *outcome, replicas int) {
	n, reigns := w.have(o)
	if n < replicas {
		select {
		case <-ctx.Done():
		case <-time.After(redisconn.WaitBound):
		}
		n, reigns = w.have(o)
	}
	wait := redisconn.Reply{Value: int64(n), Err: ctx.Err()}
	if !reigns {
		wait.Err = errLost
	}
	for i, r := range o.replies {
		o.replies[i] = r.Confirmed(wait, replicas)
	}
}

// have is how many replicas have a write, and whether the server still reigns.
func (w *world) have(o *outcome) (n int, reigns bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.servers {
		if r.alive && r.master == o.server && r.linked && r.offset >= o.target {
			n++
		}
	}
	return n, o.server.reign() == o.reign && o.server.alive
}

func (w *world) hold(d *delayed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held = append(w.held, d)
}

// deliver has the client's k-th delayed request arrive, or its answer.
func (w *world) deliver(c *client, k int, at *server) {
	w.mu.Lock()
	var d *delayed
	for i, x := range w.held {
		if x.client != c {
			continue
		}
		if k--; k < 0 {
			d = x
			w.held = slices.Delete(w.held, i, i+1)
			break
		}
	}
	w.mu.Unlock()
	switch {
	case d == nil:
	case d.arrived:
		d.answer <- d.replies
	default:
		replies := w.arrive(context.Background(), d.request, at)
		select {
		case d.answer <- replies:
		default: // the request has arrived before
		}
	}
}

// dropHeld loses what is on the way.
func (w *world) dropHeld() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.held {
		select {
		case d.answer <- d.all(redisconn.Reply{Err: errLost}):
		default:
		}
	}
	w.held = nil
}

func (s *subscription) hears(at *server, channel string) bool {
	return s.channel == channel && (s.server == at || at.world.cluster > 0) && !s.client.cut && !s.client.deaf
}

// listeners is how many clients a server has on a channel. Its caller has the world's lock.
func (s *server) listeners(channel string) (n int64) {
	for _, sub := range s.world.subs {
		if sub.server == s && sub.channel == channel {
			n++
		}
	}
	return n
}

func (w *world) subscribe(c *client, channel string, message func(string)) (*subscription, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.servers[c.leads(slotOf(channel))]
	if !s.alive || c.cut {
		return nil, errors.New("simulation: no subscription")
	}
	sub := &subscription{client: c, server: s, channel: channel, message: message, broken: make(chan struct{})}
	w.subs = append(w.subs, sub)
	return sub, nil
}

func (w *world) unsubscribe(sub *subscription) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.subs = slices.DeleteFunc(w.subs, func(x *subscription) bool { return x == sub })
}

// hangUp ends the client's connections.
func (w *world) hangUp(c *client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.breakSubs(func(sub *subscription) bool { return sub.client == c })
}

// disconnect ends all connections to a server. The caller has the lock, or there is no other.
func (w *world) disconnect(s *server) {
	w.breakSubs(func(sub *subscription) bool { return sub.server == s })
}

func (w *world) breakSubs(which func(*subscription) bool) {
	for _, sub := range w.subs {
		if which(sub) && !sub.over {
			sub.over = true
			close(sub.broken)
		}
	}
}
