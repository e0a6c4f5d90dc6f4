package simulation

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/redislock"
)

// checks record what the clients were told, and find what contradicts the promises.
type checks struct {
	ctx      context.Context // ends with the run
	record   sync.Mutex
	moment   int
	holds    []*hold
	wrong    []violation
	exempted int
	exempt   string // from exclusion and the order of tokens: an exception that GUARANTEES names
}

// The promises that have exceptions.
const (
	twoBelievers = "two believers"
	tokenTwice   = "one token twice"
	tokenBack    = "a token goes back"
)

// noteOldMaster notes that a master which was replaced has served a request, if too few replicas
// must confirm what it grants, less than half of all that there are, or none what it renews.
func (w *world) noteOldMaster(s *server) {
	few := 2*w.wait < len(w.servers)-1 || w.strategy != redislock.StrategyQueue
	for _, other := range w.servers {
		replaced := other != s && other.master == nil && other.since > s.since
		if w.cluster > 0 {
			replaced = replaced && s.unaware
		}
		if replaced && s.master == nil && few {
			w.exempt = "an old master serves on"
		}
	}
}

// violation is a promise that was broken.
type violation struct {
	kind string // the same for the same promise, so that a shorter schedule can be compared
	text string
}

// acquisition is a request for a lock.
type acquisition struct {
	client *client
	name   string
	shared bool
	began  int
	term   *hasp.Term // of an election
}

// believer is a lease, or an entry that was adopted.
type believer interface {
	Held() bool
	Token() uint64
	Release(ctx context.Context) error
}

// hold was granted to a client.
type hold struct {
	*acquisition
	lease           believer
	origin          *hold // the grant of what was adopted, which has the same token; its own otherwise
	units, capacity int64
	token           uint64
	at              int
	when            time.Time
	over            bool // its owner has given it up
}

func (a *acquisition) size() (units, capacity int64) {
	switch {
	case a.name[0] == 's':
		return 1, 2
	case a.shared:
		return 1, driver.Whole
	}
	return driver.Whole, driver.Whole
}

func (w *world) began(c *client, name string, shared bool) *acquisition {
	w.record.Lock()
	defer w.record.Unlock()
	w.moment++
	return &acquisition{client: c, name: name, shared: shared, began: w.moment}
}

// granted checks a grant at the moment in which its owner is told. That is enough: two who believe
// at one moment both believe at the later of their grants. The others are asked before this one,
// so that all have held at one moment if all say yes.
func (w *world) granted(a *acquisition, l believer) {
	h := &hold{acquisition: a, lease: l}
	h.origin = h
	h.units, h.capacity = a.size()
	w.believes(h)
}

func (w *world) believes(h *hold) {
	w.record.Lock()
	defer w.record.Unlock()
	a, l := h.acquisition, h.lease
	w.moment++
	h.token, h.at, h.when = l.Token(), w.moment, time.Now()
	w.trace("    %s holds %s, token %d", a.client, a.name, h.token)
	sum, beside := h.units, ""
	var held []*hold
	for _, o := range w.holds {
		if o.name == h.name && !o.over && !o.client.crashed && o.lease.Held() {
			sum += o.units
			held = append(held, o)
			beside += fmt.Sprintf(" %s (token %d)", o.client, o.token)
		}
	}
	believes := l.Held()
	if sum > h.capacity && believes && !a.client.crashed && !w.outlasts(held) {
		w.reportLocked(twoBelievers, "%s was granted %s (token %d) beside%s", a.client, a.name, h.token, beside)
	}
	for _, o := range w.holds {
		if o.name == h.name && o.origin != h.origin {
			w.checkToken(h, o, believes)
		}
	}
	w.holds = append(w.holds, h)
}

// outlasts reports that another's lease is longer than some client's: an exception that GUARANTEES
// names, since a server that has lost its mark may have heard of that client's alone.
func (w *world) outlasts(held []*hold) bool {
	for _, o := range held {
		for _, c := range w.clients {
			if o.client.ttl > c.ttl && !w.strict {
				return true
			}
		}
	}
	return false
}

// checkToken compares with an earlier grant that had ended, or must have, when this one began.
func (w *world) checkToken(h, o *hold, believes bool) {
	excludes := h.units+o.units > h.capacity && believes
	switch {
	case h.token == o.token:
		w.reportLocked(tokenTwice, "%s and %s both had token %d of %s", o.client, h.client, h.token, h.name)
	case h.token < o.token && (o.at < h.began || excludes):
		w.reportLocked(tokenBack, "%s has token %d of %s after %s had %d", h.client, h.token, h.name, o.client, o.token)
	}
}

func (w *world) refused(a *acquisition, left time.Duration) {
	w.record.Lock()
	defer w.record.Unlock()
	w.trace("    %s is refused %s: closed for %v", a.client, a.name, left)
	if w.calm {
		w.reportLocked("closed for nothing", "%s is refused %s for %s", a.client, a.name, left)
	}
}

// reportLocked notes a violation, unless what has happened is named as an exception.
func (w *world) reportLocked(kind, format string, args ...any) {
	if w.exempt != "" && !w.strict && (kind == twoBelievers || kind == tokenBack || kind == tokenTwice) {
		w.exempted++
		return
	}
	text := fmt.Sprintf(format, args...)
	w.trace("  ! %s: %s", kind, text)
	w.wrong = append(w.wrong, violation{kind, text})
}

// holdOf is the client's latest hold of a name that it has not given up.
func (w *world) holdOf(c *client, name string) *hold {
	w.record.Lock()
	defer w.record.Unlock()
	for i := len(w.holds) - 1; i >= 0; i-- {
		if h := w.holds[i]; h.client == c && h.name == name && !h.over {
			return h
		}
	}
	return nil
}
