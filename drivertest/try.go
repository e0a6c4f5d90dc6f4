package drivertest

import (
	"errors"
	"slices"
	"strings"

	"github.com/hasplock/hasp"
)

var tryTests = slices.Concat(
	slices.DeleteFunc(exclusively("Busy", nil, testTryBusy), func(x test) bool {
		return strings.HasSuffix(x.name, "/election") // an election has no try
	}),
	[]test{{name: "NamesHolder", run: testTryNamesHolder}},
)

// A try never waits and leaves nothing: neither behind a holder nor behind its waiters (no
// barging).
func testTryBusy(e *env, l *locker) {
	b, c, other := e.backend(), e.client(), e.client()
	held := e.must(l.try(c)(e.ctx()))
	_, err := l.try(other)(e.ctx())
	e.wantErr("try of a held lock", err, hasp.ErrBusy)
	l.left(e, b, 1)

	waiter := other.queue(l.lock(other))
	for _, c := range []*client{c, other, e.client()} {
		_, err := l.try(c)(e.ctx())
		e.wantErr("try of a lock others wait for", err, hasp.ErrBusy)
	}
	waiter.blocked("tries must not let a waiter pass")
	e.release(held)
	e.release(waiter.lease())
	l.left(e, b, 0)
	e.release(e.must(l.try(c)(e.ctx())))
}

// The error of a try names the holder, if the store has reported it; and no other client.
func testTryNamesHolder(e *env) {
	name := e.name()
	b := e.h.Open(e)
	owner, err := hasp.New(b, hasp.WithTTL(e.longTTL()), hasp.WithOwner(hasp.Owner{Host: "a-host", Note: "a note"}))
	if err != nil {
		e.Fatal(err)
	}
	defer owner.Close()
	held := e.must(owner.Mutex(name).Lock(e.ctx()))
	_, err = e.client().Mutex(name).TryLock(e.ctx())
	var busy *hasp.BusyError
	if !errors.As(err, &busy) {
		e.Fatalf("error %v is no *BusyError", err)
	}
	if busy.Holder != (hasp.Owner{}) && (busy.Holder.Host != "a-host" || busy.Holder.Note != "a note") {
		e.Errorf("busy with holder %+v", busy.Holder)
	}
	e.release(held)
}
