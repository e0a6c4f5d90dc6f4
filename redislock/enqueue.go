package redislock

import (
	"context"
	"strconv"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/pushqueue"
	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

var _ pushqueue.Store[extra] = (*session)(nil)

// Enter makes the entry, or asks for it. A try repeats its request while the server has not yet
// examined all holders, some of which may have expired: each request examines as many as a script
// has time for, and no message tells a try to ask again.
//
// An answer may be later than those to renewals, on other connections, and older: if one of them has
// not found the entry, the server may have forgotten what it answers here, and have granted it to
// another. It is asked once more.
func (s *session) Enter(ctx context.Context, t *ticket, mode pushqueue.Mode) (pushqueue.Answer, error) {
	for {
		r := s.queue.guard.Eval(ctx, enterScript, s.enterCall(t, mode), s.queue.opts.Replicas)
		a, again, err := answer(t.Request, r)
		if err != nil {
			return a, describeForeign(ctx, s.queue.conn, StrategyQueue, t.Extra.key, err)
		}
		s.Lock()
		t.Extra.watching = a.Retry > 0
		s.Unlock()
		switch {
		case !s.missed(t) && !again:
			return a, nil
		case ctx.Err() != nil:
			return a, ctx.Err()
		case !s.has(t):
			return a, errSessionClosed // one more request could make an entry after Leave
		}
	}
}

// missed reports, once, that a renewal has not found the entry.
func (s *session) missed(t *ticket) (is bool) {
	s.Lock()
	defer s.Unlock()
	is, t.Extra.missed = t.Extra.missed, false
	return is
}

func (s *session) has(t *ticket) bool {
	s.Lock()
	defer s.Unlock()
	return s.Has(t)
}

func (s *session) enterCall(t *ticket, mode pushqueue.Mode) redisconn.Call {
	r := t.Request
	args := append(make([]string, 0, 7), r.ID, s.ttl, s.keep, s.details(r))
	how := "enter"
	switch {
	case mode == pushqueue.Ask:
		how = "ask"
	case r.NoWait:
		how = "try"
	}
	// Most requests need no more: each argument costs the server as much as reading a field.
	switch name := s.queue.fullName(r.Name); {
	case len(r.Value) > 0 || name != "":
		args = append(args, how, string(r.Value), name)
	case how != "enter":
		args = append(args, how)
	}
	return redisconn.Call{Keys: []string{t.Extra.key}, Args: args}
}

// details is the part of an entry that the scripts do not change: units, capacity, session, since
// when, and the owner.
func (s *session) details(r driver.Request) string {
	b := make([]byte, 0, 64+len(r.Owner))
	b = append(strconv.AppendInt(b, r.Units, 10), ' ')
	b = append(strconv.AppendInt(b, r.Capacity, 10), ' ')
	b = append(append(b, s.id...), ' ')
	b = append(strconv.AppendInt(b, r.Since.UnixMicro(), 10), ' ')
	return string(append(b, r.Owner...))
}

// Leave removes the entry. It is not renewed any more, whether or not the store answers.
func (s *session) Leave(ctx context.Context, t *ticket, _ bool) error {
	there, err := s.queue.leave(ctx, s.leaveCall(t))
	if err == nil && !there {
		err = driver.ErrGone
	}
	return err
}

// Publish replaces the value of the held entry.
func (s *session) Publish(ctx context.Context, t *ticket, value []byte, number uint64) (there bool, err error) {
	return s.change(ctx, t, publishScript, s.queue.opts.Replicas, s.own(t), strconv.FormatUint(number, 10), string(value))
}

// Downgrade makes the held entry smaller, in one script that also grants the waiters that now
// fit beside it: if we die after it was sent, all of it is applied or nothing.
//
// No replica has to confirm it. A failover that forgets it leaves the store stricter than we
// are: our entry has all its units again, and blocks waiters that could hold. A waiter that was
// granted has the replicas confirm its grant, which they only have together with the downgrade.
func (s *session) Downgrade(ctx context.Context, t *ticket, units int64) (there bool, err error) {
	return s.change(ctx, t, downgradeScript, 0, s.own(t), strconv.FormatInt(units, 10))
}

// Adopt takes over another session's entry in one script. The other session's renewals ask for
// the old id, find nothing and extend nothing: from now on our renewals keep the entry.
//
// Replicas confirm it as they confirm an acquisition. A failover that forgets it brings the entry
// back under the id of its old owner, which does not renew it any more; our next renewal finds
// that ours is gone.
func (s *session) Adopt(ctx context.Context, t *ticket, id string, seq uint64) (pushqueue.Answer, error) {
	r := t.Request
	adopt := func() (bool, error) {
		return s.change(ctx, t, adoptScript, s.queue.opts.Replicas,
			s.own(t), id, strconv.FormatUint(seq, 10), s.ttl, s.keep, s.details(r))
	}
	there, err := adopt()
	if there && s.missed(t) { // as in Enter
		there, err = adopt()
	}
	if !there {
		return pushqueue.Answer{State: pushqueue.Gone}, err
	}
	return pushqueue.Answer{State: pushqueue.Held, Seq: seq}, err
}

// change runs a script that answers whether there was an entry to change.
func (s *session) change(ctx context.Context, t *ticket, script *redisconn.Script, replicas int, args ...string) (there bool, err error) {
	r := s.queue.guard.Eval(ctx, script, redisconn.Call{Keys: []string{t.Extra.key}, Args: args}, replicas)
	if r.Err != nil {
		return false, wrongType(t.Request.Name, r.Err)
	}
	if left, closed := r.Value.([]any); closed && len(left) == 1 {
		return false, quarantine.Refusal(left[0])
	}
	return r.Value == int64(1), nil
}

// ownerText is the description that the store keeps for people: since when, and the owner.
func ownerText(r driver.Request) string {
	return strconv.FormatInt(r.Since.UnixMicro(), 10) + " " + r.Owner
}
