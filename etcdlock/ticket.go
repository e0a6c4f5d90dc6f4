package etcdlock

import (
	"fmt"
	"sync"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/driver/kit/signal"
)

// ticket is one entry's key. How it enters is in enqueue.go, how it waits in wait.go, how
// it leaves in leave.go.
type ticket struct {
	session *session
	request driver.Request
	base    string        // of its queue
	signal  signal.Signal // for Wait

	mu         sync.Mutex
	key        string          // one of the session's, ours while hasKey; or adopted
	hasKey     bool            // see slots.go
	unanswered int32           // requests to enter whose outcome we do not know; see leave.go
	held       bool            // it has held
	left       bool            // Leave was called, or it was lost: nothing enters or is watched any more
	rev        int64           // create revision of the key, the place; 0: not known to be there
	mod        int64           // mod revision; with what was put there: see downgrade.go
	epoch      int64           // in which our latest request to enter was made
	rewritten  *driver.Request // what is, or is to be, at the key; nil: as it was requested

	view           view
	ownDue         *time.Timer       // begins ownWatch
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
	t.view.ahead, t.view.keys = nil, nil
	t.watchOwn()
	t.held = true
}

// watchOwn has our key watched in a while. The caller has mu.
func (t *ticket) watchOwn() {
	if t.ownDue != nil {
		return
	}
	t.ownDue = time.AfterFunc(watchAfter, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.left {
			t.ownWatch = t.session.watches.begin(&watch{key: t.key, to: t}, t.view.rev)
		}
	})
}

// lost notes that our key was deleted, and not by us. It returns whether that is news: to those who
// have left it is not.
//
// The watches end here, since the core makes no Leave of what it was told to be gone: that of a
// held entry would stay as long as the session, and be told of every later use of the key. No
// other begins: Wait and ownDue look at left under mu. A message that is under way finds a watch
// that is not ours, or that we have left.
func (t *ticket) lost() (news bool) {
	t.mu.Lock()
	news, t.left = !t.left, true
	off := t.unwatch(true)
	t.signal.Notify()
	t.mu.Unlock()
	for _, w := range off {
		t.session.watches.release(w)
	}
	t.freeKey(true)
	return news
}

// errDeleted says why an entry was lost.
var errDeleted = fmt.Errorf("%w: its key was deleted", driver.ErrGone)

// current is the entry as it is, or is to be, at the key. The caller has mu, and changes nothing.
func (t *ticket) current() *driver.Request {
	if t.rewritten != nil {
		return t.rewritten
	}
	return &t.request
}
