package mysqllock

import (
	"context"
	"time"
)

// This file notices that the connection of a held lock has ended, or is silent, and tells the
// holder.

// watch has fn called when the connection ends; nil ends that. It reports false if it has ended.
// The caller has the turn.
func (t *boundTicket) watch(fn func()) (standing bool) {
	if t.session.bound.monitors == nil {
		return true
	}
	return t.monitor != nil && t.monitor.watch(fn)
}

// lost is called when the connection of a held lock has ended, or does not answer. It reports
// whether the holder was told, now or before: not one that has left.
func (t *boundTicket) lost() bool {
	t.mu.Lock()
	was := t.held && !t.left
	if was {
		t.held, t.gone = false, true
	}
	told := t.gone
	t.mu.Unlock()
	if was {
		t.session.opts.Gone(t.request.ID, errLost("the connection of the lock has ended"))
		go t.drop()
	}
	return told
}

// drop gives up a connection on which nothing is asked any more: the core calls no Leave for a lock
// that is lost, nor again after the end of its session. What has the turn ends with the connection,
// or with its time.
func (t *boundTicket) drop() {
	t.turn <- struct{}{}
	defer func() { <-t.turn }()
	t.discard()
	t.session.remove(t)
}

// ping asks the connection of a held lock for a sign of life, unless it has answered one that was
// sent since then. That the connection has ended is told; and that it is silent, after a third of
// what a renewal grants.
//
// A ping that is cut short ends its connection, and the server, which may hear of that although we
// hear nothing of it, gives the lock to the next client. So the holder is told first, and the
// connection ends a third later: a margin is no longer than that, or the core would have refused
// it, and so what the holder wrote before has arrived. An answer in between is too late, and
// changes nothing. Where the connection, or this process, has ended by itself, the lock has ended
// with it.
func (t *boundTicket) ping(began time.Time) {
	s := t.session
	if v, over := t.state(); over != nil || !v.Held {
		return
	}
	// Not the session's context: closing it releases, once the ping has its answer.
	ctx, cancel := context.WithTimeout(context.Background(), s.granted/3)
	defer cancel()
	if t.lock(ctx) != nil {
		return // an earlier ping has the turn, or a release that has not been answered yet
	}
	defer func() { <-t.turn }()
	if v, over := t.state(); over != nil || !v.Held || t.conn == nil || s.answeredSince(t, began) {
		return
	}
	sent := time.Now()
	within, end := context.WithTimeout(context.Background(), 2*s.granted/3)
	defer end()
	quiet := time.AfterFunc(s.granted/3, func() { // what it starts waits for the turn
		if !t.lost() {
			end() // it has left: its release waits for us, and no holder needs a margin
		}
	})
	err := t.conn.PingContext(within)
	if quiet.Stop() && err == nil {
		s.note(t, sent)
		return
	}
	told := t.lost()
	if err == nil && told {
		<-within.Done()
	}
	if err != nil || told { // else its release comes next, on a connection that answers
		t.discard()
	}
}
