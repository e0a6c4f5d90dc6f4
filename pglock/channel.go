package pglock

import (
	"context"
	"crypto/rand"
	"strings"
	"sync"
	"time"
)

// For each commit with NOTIFY the server (before PostgreSQL 19) wakes every connection of the
// database that listens, on any channel. So the sessions of a process that reach the same tables in
// the same way share one channel, and one of them listens on it, on the connection that renews, and
// only while an entry of one of them waits.
//
// An entry may be granted before the LISTEN is in force, or between the end of one and the next,
// and that notification is lost. So as soon as a LISTEN is in force, one statement on the same
// connection reads which entries of these sessions hold, and what it finds is handled as if it had
// been notified. That misses none. A grant that was committed before the reading is read, and a later
// one is notified. (An entry committed after the reading was also granted after it.) A request
// that began after the tickets for the reading were collected was sent
// when the LISTEN was in force. Rejected: each waiter asks. Where hundreds come at once that is as
// many requests again for the same name, and the hand-overs wait behind them. Only those ask whose
// entries are gone.
//
// A LISTEN ends with its connection, with its session, and when nothing has waited for a while. If
// something waits then, another session listens, since the connection that broke needs time to be
// set up.

// channel is where the sessions of a process hear of their grants.
type channel struct {
	key  channelKey
	name string

	// Guarded by the lock of channels.
	sessions map[string]*session // those that are open, by id
	listen   *listen             // in force or being made; nil if there is none
	waited   time.Time           // when the store last answered that an entry waits
}

// channelKey is equal for sessions that may share a channel.
type channelKey struct {
	login          any
	schema, prefix string
}

// listen is one LISTEN.
type listen struct {
	on      *session // on whose connection
	inForce bool
}

// listenFor is how long a process goes on to listen when nothing waits any more.
const listenFor = 5 * time.Second

// askApart is the time from one waiter that asks because its entry is missing to the next.
const askApart = time.Millisecond / 5

// channels are those of this process. One lock for all: a wait holds it once, for a moment. It is
// taken before any session's.
var channels = struct {
	sync.Mutex
	by map[channelKey]*channel
}{by: map[channelKey]*channel{}}

// join adds a session to the channel of its process, until it ends.
func join(key channelKey, s *session) *channel {
	channels.Lock()
	defer channels.Unlock()
	c := channels.by[key]
	if c == nil {
		c = &channel{key: key, name: "hasp_l_" + strings.ToLower(rand.Text()[:16]), sessions: map[string]*session{}}
		channels.by[key] = c
	}
	c.sessions[s.id] = s
	context.AfterFunc(s.Done, func() { c.leave(s) })
	return c
}

func (c *channel) leave(s *session) {
	channels.Lock()
	defer channels.Unlock()
	delete(c.sessions, s.id)
	if len(c.sessions) == 0 {
		delete(channels.by, c.key)
	}
	if c.listen != nil && c.listen.on == s {
		c.over(c.listen)
	}
}

// waits notes that a ticket's entry waits, and has a LISTEN made if there is none. The lock makes
// that one step, as over is: either that sees the ticket, or this sees that the LISTEN is over.
func (c *channel) waits(s *session, t *ticket) {
	channels.Lock()
	defer channels.Unlock()
	c.waited = time.Now()
	s.Lock()
	t.Extra.waits = true
	s.Unlock()
	if c.listen == nil && c.sessions[s.id] == s {
		c.begin(s)
	}
}

// begin has a LISTEN made on the connection of a session; the caller has the lock. While the
// connection is down that waits for the next, or for the failure to make it.
func (c *channel) begin(s *session) {
	l := &listen{on: s}
	c.listen = l
	go func() {
		err := s.conn.ask(s.Done, func(ctx context.Context, r runner) error { return c.make(ctx, r, l) })
		if err != nil {
			pause(s.Done) // one that is refused must not spin
			channels.Lock()
			defer channels.Unlock()
			c.over(l)
		}
	}()
}

// make listens, and then reads what may have been notified before. The goroutine that owns the
// connection calls it, so that it comes before broke. The time is bounded, since a renewal may wait
// behind it: where the server does not answer, there must be time for another connection.
func (c *channel) make(ctx context.Context, r runner, l *listen) error {
	ctx, cancel := context.WithTimeout(ctx, l.on.patience())
	defer cancel()
	if err := r.script(ctx, "LISTEN "+c.name); err != nil {
		return err
	}
	tickets, missing := c.undecided()
	if len(tickets) > 0 {
		names, ids := named(tickets)
		err := r.each(ctx, l.on.table.naming.sql("SELECT g FROM hasp_granted($1::pg_catalog.text::pg_catalog.text[], $2::pg_catalog.text::pg_catalog.text[]) g"),
			[]any{names, ids}, anyNumber, func(scan func(...any) error) error {
				var grant string
				if err := scan(&grant); err != nil {
					return err
				}
				c.heard(grant)
				delete(missing, grant[:max(strings.LastIndexByte(grant, ' '), 0)])
				return nil
			})
		if err != nil {
			return err
		}
	}
	channels.Lock()
	defer channels.Unlock()
	l.inForce = true
	time.AfterFunc(listenFor, func() { c.look(l) })
	after := time.Duration(0)
	for _, w := range missing { // evicted meanwhile, or forgotten in a crash of the server
		after += askApart
		w.Lock()
		w.AskAfter(after)
		w.Unlock()
	}
	return nil
}

// waiter is a ticket whose entry waits. The lock is its session's.
type waiter struct {
	*ticket
	sync.Locker
}

// undecided are the tickets that may have an entry and are not known to hold, and those of them
// that must have one, by "SESSION ID".
func (c *channel) undecided() (all []*ticket, waiting map[string]waiter) {
	channels.Lock()
	defer channels.Unlock()
	waiting = map[string]waiter{}
	for _, s := range c.sessions {
		s.Lock()
		for t := range s.Tickets() {
			if !t.Held() {
				all = append(all, t)
				if t.Extra.waits {
					waiting[s.id+" "+t.Request.ID] = waiter{t, s}
				}
			}
		}
		s.Unlock()
	}
	return all, waiting
}

// broke notes that the connection of a session has ended, and with it a LISTEN that was in force
// there.
func (c *channel) broke(s *session) {
	channels.Lock()
	defer channels.Unlock()
	if l := c.listen; l != nil && l.inForce && l.on == s {
		c.over(l)
	}
}

// over notes that a LISTEN has ended or never came to be. A session in which something waits makes
// the next, if possible another one. The caller has the lock.
func (c *channel) over(l *listen) {
	if l != c.listen {
		return
	}
	c.listen = nil
	var next *session
	for _, s := range c.sessions {
		if (next == nil || next == l.on) && s.anyWaits() {
			next = s
		}
	}
	if next != nil {
		c.begin(next)
	}
}

// look ends a LISTEN if nothing waits any more; else it looks again after listenFor. The UNLISTEN
// comes before any later LISTEN on the connection, since it is submitted under the lock; if it
// fails, the connection has ended.
func (c *channel) look(l *listen) {
	channels.Lock()
	defer channels.Unlock()
	switch {
	case l != c.listen:
	case c.anyWaits():
		time.AfterFunc(listenFor, func() { c.look(l) })
	default:
		c.listen = nil
		l.on.conn.submit(l.on.Done, func(ctx context.Context, r runner) error {
			ctx, cancel := context.WithTimeout(ctx, l.on.patience())
			defer cancel()
			return r.script(ctx, "UNLISTEN "+c.name)
		})
	}
}

// anyWaits reports whether an entry waits, or has come to wait lately. The caller has the lock.
func (c *channel) anyWaits() bool {
	if time.Since(c.waited) < listenFor {
		return true
	}
	for _, s := range c.sessions {
		if s.anyWaits() {
			return true
		}
	}
	return false
}

// heard hands a notification, "SESSION ID SEQ", to its session.
func (c *channel) heard(payload string) {
	id, message, _ := strings.Cut(payload, " ")
	channels.Lock()
	s := c.sessions[id]
	channels.Unlock()
	if s != nil {
		s.Message(message)
	}
}
