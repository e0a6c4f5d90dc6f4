package redislock

import (
	"context"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/signal"
)

// ticket is the grip on one entry.
type ticket struct {
	session *session
	request driver.Request
	key     string

	// Guarded by session.mu.
	sent      bool          // there may be an entry
	confirmed bool          // the store has answered that there is: it must not be made again
	held      bool          // and that it holds
	left      bool          // Leave was called: a late Enqueue must not make an orphan
	gone      bool          // the store has no such entry any more
	seq       uint64        // of the confirmed entry
	doubt     bool          // a request was not answered: it may yet make the entry
	renewed   time.Time     // when the last request was sent that gave the entry its TTL
	version   uint64        // of the last value published
	granted   uint64        // the Seq that a message granted, perhaps before our request was answered
	retry     time.Duration // news for Wait: ask after this long
	watching  bool          // the core has been asked to ask: it keeps the time
	bell      signal.Signal
}

// Enqueue makes the entry, or asks for it once it has been confirmed. A try goes on while the
// server has yet to look at some of those who seem to be in the way: each request looks at as
// many as a script has time for, and nobody tells a try to come back.
func (t *ticket) Enqueue(ctx context.Context) (driver.Verdict, error) {
	for {
		if err := ctx.Err(); err != nil {
			return driver.Verdict{}, err
		}
		if err := t.session.register(t); err != nil {
			return driver.Verdict{}, err
		}
		if v, ok := t.pushed(); ok {
			return v, nil
		}
		if v, again, err := t.enter(ctx); !again {
			return v, err
		}
	}
}

// enter makes one request. again says that the server has to be asked again.
func (t *ticket) enter(ctx context.Context) (_ driver.Verdict, again bool, _ error) {
	s := t.session
	r := s.queue.conn.Eval(ctx, enterScript, t.enterCall(), s.queue.opts.Replicas)
	a, err := s.queue.answer(t.request, r)
	err = identify(ctx, s.queue.conn, t.key, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		t.doubt = t.doubt || !a.refused
		if !t.doubt { // there is nothing to renew, and nothing to leave
			t.sent = false
			delete(s.tickets, t.request.ID)
		}
		return driver.Verdict{}, false, err
	case t.left || s.closed:
		return driver.Verdict{}, false, errSessionClosed // Leave and Close removed what this made, or its expiry will
	case a.busy && a.again:
		return driver.Verdict{}, true, nil
	case a.busy:
		t.sent = false
		delete(s.tickets, t.request.ID)
		return driver.Verdict{Holder: a.holder}, false, nil
	}
	t.confirmed, t.doubt, t.seq = true, false, a.seq
	t.held = t.held || a.held || t.granted == a.seq
	t.watching = a.retry > 0
	return t.verdict(a.retry), false, nil
}

// pushed answers without a request if a message has brought the grant, unless replicas
// must confirm it: the release that made it did not wait for them.
func (t *ticket) pushed() (driver.Verdict, bool) {
	s := t.session
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.held || t.gone || s.closed || !t.confirmed || t.granted != t.seq || s.queue.opts.Replicas > 0 {
		return driver.Verdict{}, false
	}
	t.held = true
	return t.verdict(0), true
}

func (t *ticket) enterCall() redisconn.Call {
	q, r := t.session.queue, t.request
	t.session.mu.Lock()
	confirmed := t.confirmed
	t.session.mu.Unlock()
	mode := "enter"
	switch {
	case confirmed:
		mode = "ask"
	case r.NoWait:
		mode = "try"
	}
	return redisconn.Call{Keys: []string{t.key}, Args: []string{
		mode, r.ID, strconv.FormatInt(r.Units, 10), strconv.FormatInt(r.Capacity, 10), t.session.ttl, t.session.id,
		people(r), string(r.Value), q.fullName(r.Name), t.session.keep,
	}}
}

// verdict is the answer as it is known; the caller has session.mu.
func (t *ticket) verdict(retry time.Duration) driver.Verdict {
	if t.held {
		return driver.Verdict{Held: true, Token: t.seq}
	}
	return driver.Verdict{Retry: retry}
}

// Wait returns what a message or a renewal has brought.
func (t *ticket) Wait(ctx context.Context) (driver.Verdict, error) {
	s := t.session
	for {
		if v, ok := t.pushed(); ok {
			return v, nil
		}
		s.mu.Lock()
		switch {
		case t.gone || s.closed:
			s.mu.Unlock()
			return driver.Verdict{}, driver.ErrGone
		case !t.held && t.confirmed && t.granted == t.seq:
			s.mu.Unlock()
			return t.Enqueue(ctx) // asks the replicas
		case t.held || t.retry > 0:
			v := t.verdict(t.retry)
			t.retry = 0
			s.mu.Unlock()
			return v, nil
		}
		s.mu.Unlock()
		select {
		case <-t.bell.C():
		case <-s.done.Done():
		case <-ctx.Done():
			return driver.Verdict{}, ctx.Err()
		}
	}
}

// Leave removes the entry. From here on it is not renewed, whatever the store answers.
func (t *ticket) Leave(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := t.session
	s.mu.Lock()
	sent := t.sent
	t.left = true
	delete(s.tickets, t.request.ID)
	s.mu.Unlock()
	if !sent {
		return driver.ErrGone
	}
	there, err := s.queue.leave(ctx, s.queue.leaveCall(t.key, t.request.ID))
	if err == nil && !there {
		err = driver.ErrGone
	}
	return err
}

// Publish replaces the value of the held entry. Each value has a number: a request whose answer
// nobody waits for any more may arrive after the next one, and must not take its place.
func (t *ticket) Publish(ctx context.Context, value []byte) error {
	t.session.mu.Lock()
	t.version++
	version := strconv.FormatUint(t.version, 10)
	t.session.mu.Unlock()
	call := redisconn.Call{Keys: []string{t.key}, Args: []string{t.request.ID, version, string(value)}}
	r := t.session.queue.conn.Eval(ctx, publishScript, call, t.session.queue.opts.Replicas)
	if r.Err != nil {
		return wrongType(t.request.Name, r.Err)
	}
	if r.Value != int64(1) {
		return driver.ErrGone
	}
	return nil
}

// people packs what the store keeps for people's eyes: when it asked, and who.
func people(r driver.Request) string {
	return strconv.FormatInt(r.Since.UnixMicro(), 10) + " " + r.Owner
}
