package etcdlock

import (
	"fmt"
	"sync"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/signal"
)

// ticket is one entry's key. How it enters is in enqueue.go, how it waits in wait.go, how
// it leaves in leave.go.
type ticket struct {
	session *session
	request driver.Request
	base    string        // of its queue; a part of its first key, once that is known
	signal  signal.Signal // for Wait

	mu             sync.Mutex
	key            string // one of the session's slots, ours while kept; or adopted
	written        []byte // the value that was put there
	unanswered     int32  // requests to enter whose outcome we do not know; see leave.go
	hasKey         bool
	baseInKey      bool
	left           bool // Leave was called: nothing may enter any more
	held           bool
	gone           bool     // the key was deleted, and not by us
	ownDue         bool     // it is, or will be, watched
	adoptedAway    bool     // another session has adopted it
	rev            int64    // create revision of the key, the place; 0: not known to be there
	epoch          int64    // in which our latest request to enter was made
	mod            int64    // mod revision; with what was put there: see downgrade.go
	rewritten      *content // nil: as it was requested
	view           view
	ownWatch       *watch            // for the deletion of our key; see keywatch.go
	blockerWatches map[string]*watch // by key, for that of the blockers
}

func (t *ticket) queue() queue { return queue{name: t.request.Name, base: t.base} }

// entered returns whether our key is known to be there, or to have been.
func (t *ticket) entered() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rev != 0
}

// decide decides by the view. sure is false if the answer "held" needs a complete one. A
// "no" is always sure: some of those ahead deny us, whichever others are there.
//
// Of the blockers, one that denies us alone is enough to watch: while it stays, it does not
// matter who behind it leaves. So a reader watches the writer, and not the readers between.
func (t *ticket) decide() (held, sure bool, blockers []string) {
	held, by := driver.Decide(t.view.ahead, t.request)
	blockers = t.view.keys[len(t.view.keys)-len(by):]
	if len(by) > 0 && by[0].Units > t.request.Capacity-t.request.Units {
		blockers = blockers[:1]
	}
	return held, !held || t.view.complete, blockers
}

// verdict is the answer by the view, which must be sure. The caller has mu.
func (t *ticket) verdict() driver.Verdict {
	if held, sure, _ := t.decide(); held && sure {
		t.startHolding()
		return driver.Verdict{Held: true, Token: uint64(t.rev)}
	}
	v := driver.Verdict{}
	if t.view.complete && !isReader(&t.request) { // a reader's view lacks the other readers
		v.Place = driver.Place(t.view.ahead, t.request.Capacity)
	}
	if len(t.view.ahead) > 0 {
		v.Holder = t.view.ahead[0].Owner
	}
	return v
}

// startHolding is called when the entry begins to hold, and when it is asked again. The caller
// has mu.
func (t *ticket) startHolding() {
	for _, w := range t.unwatch(false) {
		t.session.watches.release(w)
	}
	t.view.ahead, t.view.keys, t.view.updates = nil, nil, nil
	t.written = nil // 200 bytes for each held lock; from now on the create revision tells our key
	t.watchOwn()
	t.held = true
}

// watchOwn has our key watched in a while. The caller has mu.
func (t *ticket) watchOwn() {
	if !t.ownDue {
		t.ownDue = true
		t.session.watches.beginOwn(t)
	}
}

// keyLost is called when another client has deleted our key.
//
// The watches end here, since the core makes no Leave of what it was told to be gone: that of a
// held entry would stay as long as the session, and be told of every later use of the key. No
// other begins: Wait and sweep look at gone under mu. A message that is under way finds a watch
// that is not ours, or has us told again, which the core ignores. It may be Leave that has ended
// them already; then there are none.
func (t *ticket) keyLost() {
	t.mu.Lock()
	t.gone = true
	left, off := t.left, t.unwatch(true)
	t.signal.Notify()
	t.mu.Unlock()
	for _, w := range off {
		t.session.watches.release(w)
	}
	t.freeKey(true)
	if !left {
		t.session.gone(t.request.ID, fmt.Errorf("%w: its key was deleted", driver.ErrGone))
	}
}
