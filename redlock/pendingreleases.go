package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// debt is a key that may be at a server and must not stay: of an attempt that came to
// nothing, or of a lock whose release the server has not confirmed.
type debt struct {
	keys   []string
	me     string
	waiter string // who waits there no more; may be empty
	wake   bool   // tell one who does
	since  time.Time

	// doubts is how often the server may yet say that the key is not there without being
	// believed: the request that sets it may still be on its way, on a connection that broke.
	doubts int
}

// mostDoubts gives such a request half a second after the server is there again.
const mostDoubts = 4

// debts are what one server is owed. At most one goroutine pays at a time, in one flight
// for all, so that a server that is down costs a few requests and not one for each key.
type debts struct {
	list   []debt
	paying bool
	open   int // requests about keys that are under way, each of which may make a debt yet
}

// oweLocked notes a debt and has it paid.
func (s *session) oweLocked(i int, d debt) {
	o := &s.debts[i]
	o.list = append(o.list, d)
	if !o.paying {
		o.paying = true
		go s.pay(i)
	}
}

// The pause between attempts to pay a server that does not answer.
const (
	firstPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// pay gives back until nothing is owed. A debt that is older than the TTL is forgotten: the
// key has expired, unless the request that sets it is still on its way. That one then lasts
// a TTL from its arrival at most, which is the bound for all that is left behind.
func (s *session) pay(i int) {
	for pause := firstPause; ; {
		s.mu.Lock()
		o := &s.debts[i]
		var due []debt
		for _, d := range o.list {
			if time.Since(d.since) < s.opts.TTL {
				due = append(due, d)
			}
		}
		o.list = nil
		if len(due) == 0 || s.done.Err() != nil {
			o.paying = false
			s.mu.Unlock()
			s.ringSettled()
			return
		}
		s.mu.Unlock()

		left := s.payAll(i, due)
		s.mu.Lock()
		o.list = append(left, o.list...)
		s.mu.Unlock()
		if len(left) == 0 {
			pause = firstPause
			continue
		}
		timer := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-timer.C:
		case <-s.done.Done():
			timer.Stop()
		}
		pause = min(2*pause, mostPause)
	}
}

// payAll returns the debts about which the server has not answered, or is not believed. One
// that it refuses to hear of is paid: it will refuse the next time, too.
func (s *session) payAll(i int, due []debt) []debt {
	ctx, cancel := context.WithTimeout(s.done, s.requestBound())
	defer cancel()
	calls := make([]redisconn.Call, len(due))
	for j, d := range due {
		calls[j] = d.call()
	}
	var left []debt
	for j, r := range s.store.nodes[i].evalAll(ctx, setnx.Give, calls) {
		d := due[j]
		switch {
		case r.Err != nil && redisconn.Answered(r.Err) == "":
			left = append(left, d)
		case r.Value != int64(1) && d.doubts > 0:
			d.doubts--
			left = append(left, d)
		}
	}
	return left
}

// debtLocked is what a server is owed of the attempt that is me's. Who has left waits no more.
func (t *ticket) debtLocked(me string, wake bool) debt {
	d := debt{keys: t.keys, me: me, wake: wake, since: time.Now()}
	if t.left {
		d.waiter = t.member()
	}
	return d
}

// call deletes the key if it is me's, forgets the waiter and, with wake, wakes the next.
// An attempt that came to nothing was never the holder whose release somebody waits for, so
// it only has the first look a little later, in case nobody else tells it.
func (d debt) call() redisconn.Call {
	most := "0"
	if d.wake {
		most = "8" // in a row that nobody listens for
	}
	return redisconn.Call{Keys: d.keys, Args: []string{d.me, d.waiter, setnx.ChannelPrefix, most}}
}

// endedRequests counts down what open has counted, when all that follows from it is noted.
func (s *session) endedRequests(i, n int) {
	s.mu.Lock()
	s.debts[i].open -= n
	s.mu.Unlock()
	s.ringSettled()
}

func (s *session) ringSettled() {
	select {
	case s.settled <- struct{}{}:
	default:
	}
}

// settle waits until nothing is owed, or after patience until only a minority is owed
// anything.
func (s *session) settle(ctx context.Context) error {
	timer := time.NewTimer(s.patience)
	defer timer.Stop()
	for waited := false; ; {
		owed := 0
		s.mu.Lock()
		for i := range s.debts {
			if o := &s.debts[i]; o.paying || o.open > 0 {
				owed++
			}
		}
		s.mu.Unlock()
		if owed == 0 || waited && owed <= len(s.store.nodes)-s.store.quorum {
			return nil
		}
		select {
		case <-s.settled:
		case <-timer.C:
			waited = true
		case <-s.done.Done():
			return errors.New("the store is closed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
