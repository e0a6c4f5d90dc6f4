package drivertest

import (
	"net/url"
	"strings"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

var traitTests = []test{
	{name: "Refused", run: testRefused},
	{name: "Honest", run: testHonest},
}

// humble hides the abilities of a store.
type humble struct{ driver.Backend }

func (h humble) Traits() driver.Traits {
	t := h.Backend.Traits()
	t.Shared, t.Counting, t.Values = false, false, false
	return t
}

// A feature that a store does not promise is refused before any I/O, regardless of the store's
// other abilities.
func testRefused(e *env) {
	p := newInterceptor(humble{e.h.Open(e)})
	c := e.clientOn(p, p, e.longTTL())
	name := e.name()
	for what, lock := range map[string]acquire{
		"RLock": c.RWMutex(name).RLock, "TryRLock": c.RWMutex(name).TryRLock,
		"Acquire": permits(c, name, 3, 1),
	} {
		_, err := lock(e.ctx())
		e.wantErr(what, err, hasp.ErrUnsupported)
	}
	_, err := c.Semaphore(name, 3).TryAcquire(e.ctx(), 1)
	e.wantErr("TryAcquire", err, hasp.ErrUnsupported)
	_, err = c.Election(name).Campaign(e.ctx(), nil)
	e.wantErr("Campaign", err, hasp.ErrUnsupported)
	_, err = c.Election(name).Leader(e.ctx())
	e.wantErr("Leader", err, hasp.ErrUnsupported)
	for _, err := range c.Names(e.ctx(), "") {
		e.wantErr("Names", err, hasp.ErrUnsupported)
	}
	c.untouched()
	e.release(e.must(c.Mutex(name).Lock(e.ctx())))
}

// Promises come with the methods that keep them, are the same for every connection, and the name of
// the store shows no secret of its URL (O2).
func testHonest(e *env) {
	b := e.backend()
	if t := e.backend().Traits(); t != b.Traits() {
		e.Errorf("two connections promise different things: %+v, %+v", t, b.Traits())
	}
	if b.Traits().MinTTL < 0 {
		e.Errorf("the shortest TTL is %s", b.Traits().MinTTL)
	}
	t := e.session(b, nil).Ticket(e.whole(e.name()))
	if _, ok := t.(driver.Publisher); e.traits.Values && !ok {
		e.Error("values are promised, and a ticket cannot publish any")
	}
	label := b.String()
	if label == "" {
		e.Error("the store has no name for messages")
	}
	e.discreet("the store's name", label)
}

// discreet fails if a text shows a secret of the store's URL (O2).
func (e *env) discreet(what, text string) {
	e.Helper()
	u, err := url.Parse(e.h.URL)
	if err != nil || u.User == nil {
		return
	}
	for _, secret := range strings.Split(u.User.String(), ":") {
		if secret != "" && strings.Contains(text, secret) {
			e.Error(what + " shows user or password of its URL") // without quoting it
		}
	}
}
