package simulation

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing/synctest"
	"time"

	"github.com/hasplock/hasp/driver"
)

// A step is a line: an operation, and its arguments. One that does not apply (to a client that was
// never made, say) does nothing, so that any part of a schedule is a schedule.
//
//	client C [ttl=SECONDS] [at=S] [noinfo] [db=1]
//	lock C NAME | try C NAME | read C NAME | release C NAME
//	fate C FATE...            of its next requests; see fate
//	deliver C K [S]           its K-th delayed request arrives (at server S), or the answer
//	downgrade C NAME | publish C NAME
//	adopt C D NAME            C goes on with what D holds, as servers of hasp serve do
//	cut C | heal C | deaf C | crash C | close C
//	lead C S | lead all S     the address leads to server S
//	pass SECONDS
//	restart S all | restart S empty | restart S back K    with the file of K changes ago
//	stop S | start S all|empty|back K
//	promote S | follow S M | lag S | catch S
//	failover S | switchover S the replica S becomes the master of all, where the address leads; the old one is dead, or its replica
//	rejoin S K                a dead server starts with the file of K changes ago, as a replica of that master
//	move NAME S               in a cluster: the slot of the name
//	take R [1]                in a cluster: R is the master of its master's slots, which serves on with 1
//	watch C NAME              follows the name from now on
//	must C NAME               a try, which must be granted
//	foreign S                 another program restores a key of its
//	flush S | swap S | restore S K | evict S | reset S | clock S SECONDS | full S | room S
type operation func(w *world, args []string)

var operations = map[string]operation{
	"client": (*world).stepClient,
	"lock":   func(w *world, args []string) { w.stepLock(args, false, false) },
	"try":    func(w *world, args []string) { w.stepLock(args, true, false) },
	"read":   func(w *world, args []string) { w.stepLock(args, false, true) },

	"release":   (*world).stepRelease,
	"downgrade": (*world).stepDowngrade,
	"publish":   (*world).stepPublish,
	"adopt":     (*world).stepAdopt,

	"fate":    (*world).stepFate,
	"deliver": (*world).stepDeliver,
	"cut":     onClient(func(c *client) { c.cut = true; c.world.breakSubs(func(s *subscription) bool { return s.client == c }) }),
	"heal":    onClient(func(c *client) { c.cut, c.deaf = false, false }),
	"deaf":    onClient(func(c *client) { c.deaf = true }),
	"crash":   onClient(func(c *client) { c.cut, c.crashed = true, true }),
	"close":   (*world).stepClose,
	"lead":    (*world).stepLead,
	"pass":    (*world).stepPass,

	"restart":    func(w *world, args []string) { w.stepStop(args); w.stepStart(args) },
	"stop":       (*world).stepStop,
	"start":      (*world).stepStart,
	"promote":    onServer(func(s *server, _ int) { s.promote() }),
	"follow":     (*world).stepFollow,
	"failover":   func(w *world, args []string) { w.stepFailover(args, true) },
	"switchover": func(w *world, args []string) { w.stepFailover(args, false) },
	"rejoin":     (*world).stepRejoin,

	"move":  (*world).stepMove,
	"take":  onServer(func(s *server, n int) { s.world.stepTakeOver(s, n) }),
	"must":  (*world).stepMust,
	"watch": (*world).stepWatch,
	"lag":   onServer(func(s *server, _ int) { s.lags = s.master != nil }),
	"catch": onServer(func(s *server, _ int) {
		if s.lags = false; s.linked {
			s.follow()
		}
	}),
	"flush":   onServer(func(s *server, _ int) { onMaster(s, s.flushAll) }),
	"swap":    onServer(func(s *server, _ int) { onMaster(s, s.swapDB) }),
	"restore": onServer(func(s *server, n int) { onMaster(s, func() { s.restore(s.back(n)) }) }),
	"evict":   onServer(func(s *server, _ int) { onMaster(s, s.evictAll) }),
	"reset":   onServer(func(s *server, _ int) { s.resetStat() }),
	"clock":   onServer(func(s *server, n int) { s.skew += int64(n) * 1e6 }),
	"foreign": onServer(func(s *server, _ int) { onMaster(s, func() { s.counted("restore"); s.written() }) }),
	"full":    onServer(func(s *server, _ int) { s.full = true }),
	"room":    onServer(func(s *server, _ int) { s.full = false }),
}

func onMaster(s *server, f func()) {
	if s.alive && s.master == nil {
		f()
	}
}

func onServer(f func(s *server, n int)) operation {
	return func(w *world, args []string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if s := w.server(args, 0); s != nil && s.alive {
			n := 0
			if len(args) > 1 {
				n, _ = strconv.Atoi(args[1])
			}
			f(s, n)
		}
	}
}

func onClient(f func(c *client)) operation {
	return func(w *world, args []string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if c := w.client(args); c != nil {
			f(c)
		}
	}
}

func (w *world) server(args []string, at int) *server {
	if at < len(args) {
		if n, err := strconv.Atoi(args[at]); err == nil && n >= 0 && n < len(w.servers) {
			return w.servers[n]
		}
	}
	return nil
}

// client is the living one of the first argument.
func (w *world) client(args []string) *client {
	for _, c := range w.clients {
		if len(args) > 0 && strconv.Itoa(c.n) == args[0] && !c.crashed && !c.closed {
			return c
		}
	}
	return nil
}

// step runs a line, and waits until nothing more happens at this moment.
func (w *world) step(line string) {
	fields := strings.Fields(line)
	op := operations[fields[0]]
	if op == nil {
		panic(fmt.Sprintf("no operation %q", line))
	}
	w.trace("%s", line)
	w.mu.Lock()
	for _, s := range w.servers {
		s.keepFile()
	}
	w.mu.Unlock()
	op(w, fields[1:])
	synctest.Wait()
}

func (w *world) stepClient(args []string) {
	n, err := strconv.Atoi(args[0])
	if err != nil || w.client(args) != nil {
		return
	}
	ttl, at, noInfo, db := w.ttl, w.master(), false, 0
	for _, arg := range args[1:] {
		name, text, _ := strings.Cut(arg, "=")
		switch number, _ := strconv.Atoi(text); name {
		case "ttl":
			ttl = time.Duration(number) * time.Second
		case "at":
			at = number
		case "noinfo":
			noInfo = true
		case "db":
			db = number
		}
	}
	c, err := w.newClient(n, ttl, at)
	if err != nil {
		panic(err)
	}
	c.noInfo, c.db = noInfo, db
	w.mu.Lock()
	w.clients = append(w.clients, c)
	w.mu.Unlock()
}

// master is where a new client's address leads: the address of the others, else the first server.
func (w *world) master() int { return w.address }

func (w *world) stepLock(args []string, try, shared bool) {
	if c := w.client(args); c != nil && len(args) > 1 {
		go w.acquire(c, args[1], try, shared)
	}
}

func (w *world) stepRelease(args []string) {
	c := w.client(args)
	if c == nil || len(args) < 2 {
		return
	}
	if h := w.holdOf(c, args[1]); h != nil {
		w.record.Lock()
		h.over = true
		w.record.Unlock()
		go func() {
			ctx, cancel := context.WithTimeout(w.ctx, patience)
			defer cancel()
			_ = h.lease.Release(ctx) // what it tells is told by the next grants
		}()
	}
}

func (w *world) stepFate(args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.client(args); c != nil {
		for _, f := range args[1:] {
			c.fates = append(c.fates, fate(strings.TrimPrefix(f, "passes")))
		}
	}
}

func (w *world) stepDeliver(args []string) {
	if c := w.client(args); c != nil && len(args) > 1 {
		k, _ := strconv.Atoi(args[1])
		at := w.server(args, 2)
		go w.deliver(c, k, at)
	}
}

func (w *world) stepClose(args []string) {
	if c := w.client(args); c != nil {
		w.record.Lock()
		for _, h := range w.holds {
			h.over = h.over || h.client == c
		}
		w.record.Unlock()
		c.closed = true
		go c.Close()
	}
}

func (w *world) stepLead(args []string) {
	to := w.server(args, 1)
	if to == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if args[0] == "all" {
		w.address = to.n
	}
	for _, c := range w.clients {
		if args[0] == "all" || args[0] == strconv.Itoa(c.n) {
			c.at = to.n
		}
	}
	w.breakSubs(func(sub *subscription) bool { return w.cluster == 0 && sub.client.at != sub.server.n })
}

func (w *world) stepPass(args []string) {
	seconds, _ := strconv.ParseFloat(args[0], 64)
	time.Sleep(time.Duration(seconds * float64(time.Second)))
}

func (w *world) stepStop(args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.server(args, 0); s != nil && s.alive {
		s.keepFile()
		s.die()
	}
}

func (w *world) stepStart(args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.server(args, 0)
	if s == nil || s.alive || len(args) < 2 {
		return
	}
	f := file{data: newData()}
	switch args[1] {
	case "all": // an append-only file, which does not have the history's id
		f = file{data: s.back(0).data, offset: s.back(0).offset}
	case "back":
		n := 0
		if len(args) > 2 {
			n, _ = strconv.Atoi(args[2])
		}
		f = s.back(n)
	}
	s.start(f)
}

func (w *world) stepFollow(args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, m := w.server(args, 0), w.server(args, 1)
	if s == nil || m == nil || s == m || m.master != nil {
		return
	}
	w.disconnect(s)
	s.attach(m)
}

func (w *world) stepMove(args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to := w.server(args, 1); to != nil && w.cluster > 0 {
		w.move(slotOf("{"+args[0]+"}"), to)
	}
}

func (w *world) stepTakeOver(r *server, servesOn int) {
	if m := r.master; m != nil && w.cluster > 0 {
		w.takeOver(r)
		if m.unaware = servesOn == 1; !m.unaware && m.alive {
			m.attach(r)
		}
	}
}

func (w *world) stepMust(args []string) {
	c := w.client(args)
	if c == nil || len(args) < 2 {
		return
	}
	go func() {
		if err := w.acquire(c, args[1], true, false); err != nil {
			w.record.Lock()
			defer w.record.Unlock()
			w.reportLocked("closed again", "%s is told: %v", c, err)
		}
	}()
}

func (w *world) stepWatch(args []string) {
	c := w.client(args)
	if c == nil || len(args) < 2 {
		return
	}
	b, ok := c.Backend().(driver.Watcher)
	if !ok {
		return
	}
	go func() {
		for w.ctx.Err() == nil && !c.closed {
			_ = b.Watch(w.ctx, args[1], func() {}) // ends with its connection, say
			select {
			case <-time.After(time.Second):
			case <-w.ctx.Done():
			}
		}
	}()
}

// stepFailover makes a replica the master, as Sentinel does: the old one is dead, or demoted.
func (w *world) stepFailover(args []string, dead bool) {
	w.mu.Lock()
	r, m := w.server(args, 0), w.servers[w.address]
	if r == nil || !r.alive || r.master != m || w.cluster > 0 {
		w.mu.Unlock()
		return
	}
	if m.keepFile(); dead && m.alive {
		m.die()
	}
	r.promote()
	for _, s := range w.servers {
		if s != r && s.alive {
			w.disconnect(s)
			s.attach(r)
		}
	}
	w.mu.Unlock()
	w.stepLead([]string{"all", args[0]})
}

func (w *world) stepRejoin(args []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, k := w.server(args, 0), 0
	if len(args) > 1 {
		k, _ = strconv.Atoi(args[1])
	}
	m := w.servers[w.address]
	if s == nil || s == m || s.alive || w.cluster > 0 {
		return
	}
	s.start(s.back(k))
	if m.master == nil {
		s.attach(m)
	}
}
