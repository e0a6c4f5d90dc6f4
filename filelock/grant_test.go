//go:build linux && !hasp_poll

package filelock

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// pass is a holder and a waiter behind it, as if each were in a separate process. gone has what the
// waiter's session was told.
type pass struct {
	t             *testing.T
	dir           string
	holder, waits *ticket
	gone          chan string
}

func newPass(t *testing.T) *pass {
	t.Helper()
	p := &pass{t: t, dir: storeDir(t), gone: make(chan string, 10)}
	p.holder = openTestSession(t, p.dir).Ticket(mutexRequest("name", "holder")).(*ticket)
	proceeds(t, p.holder)
	s, _, err := openBackend(t, p.dir).Open(patient(t), driver.SessionOptions{Gone: func(id string, _ error) { p.gone <- id }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	p.waits = s.Ticket(mutexRequest("name", "waits")).(*ticket)
	if v, err := p.waits.Enqueue(patient(t)); v.Held || err != nil {
		t.Fatalf("%+v, %v", v, err)
	}
	return p
}

// remove is the first half of the holder's Leave: the lock is the waiter's.
func (p *pass) remove() wakeTarget {
	p.t.Helper()
	who, err := p.holder.removeEntry(patient(p.t))
	if err != nil || len(who) != 1 || who[0].holds != p.waits.seq {
		p.t.Fatalf("the release concerns %+v, %v", who, err)
	}
	return who[0]
}

// tell is the second half. It returns when the waiter's process has read the signal.
func (p *pass) tell(who wakeTarget) {
	p.t.Helper()
	p.holder.session.store.notifier.tell(who)
	testkit.Eventually(p.t, "the grant", func() bool {
		p.waits.session.mu.Lock()
		defer p.waits.session.mu.Unlock()
		return p.waits.grant == who.holds
	})
}

func (p *pass) evict() {
	p.t.Helper()
	if err := openBackend(p.t, p.dir).Evict(patient(p.t), "name", "waits", ""); err != nil {
		p.t.Fatal(err)
	}
}

// One read and one write pass the lock on, both by the one that leaves.
func TestGrantNeedsNoLook(t *testing.T) {
	began := time.Now()
	p := newPass(t)
	var v driver.Verdict
	reads, writes := accesses(func() {
		leave(t, p.holder)
		var err error
		if v, err = p.waits.Wait(patient(t)); err != nil {
			t.Error(err)
		}
	})
	if !v.Held || v.Token != p.waits.seq || !p.waits.held.Load() {
		t.Errorf("granted %+v, want token %d", v, p.waits.seq)
	}
	// A holder looks at its entries every holderUpkeepEvery.
	if time.Since(began) < holderUpkeepEvery && (reads != 1 || writes != 1) {
		t.Errorf("%d reads, %d writes", reads, writes)
	}
	proceeds(t, p.waits) // the file says the same
	leave(t, p.waits)
}

// An evicted waiter is not granted what it was sent before, or after: the entry is gone, and the
// grant may be on its way for any time.
func TestGrantOfEvicted(t *testing.T) {
	for name, do := range map[string]func(*pass, wakeTarget){
		"grant first":    func(p *pass, w wakeTarget) { p.tell(w); p.evict() },
		"eviction first": func(p *pass, w wakeTarget) { p.evict(); p.tell(w) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPass(t)
			do(p, p.remove())
			testkit.Eventually(t, "the signal of the eviction", func() bool {
				p.waits.session.mu.Lock()
				defer p.waits.session.mu.Unlock()
				return p.waits.mustLook
			})
			if v, err := p.waits.Wait(patient(t)); !errors.Is(err, driver.ErrGone) {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

// Once it has taken the grant it is a holder, and is told as one.
func TestEvictedAfterGrant(t *testing.T) {
	p := newPass(t)
	noReview(p.waits.session)
	p.tell(p.remove())
	if v, err := p.waits.Wait(patient(t)); err != nil || !v.Held {
		t.Fatalf("%+v, %v", v, err)
	}
	p.evict()
	select {
	case id := <-p.gone:
		if id != "waits" {
			t.Errorf("told of %q", id)
		}
	case <-time.After(patience):
		t.Error("an evicted holder was not told")
	}
}

// A grant of another entry, or bytes that no hasp has written, are none.
func TestForeignGrant(t *testing.T) {
	p := newPass(t)
	for _, seq := range []uint64{1, p.holder.seq, p.waits.seq + 1} {
		p.holder.session.store.notifier.tell(wakeTarget{p.waits.session.id, p.waits.number, seq})
		if v, err := p.waits.Wait(patient(t)); err != nil || v.Held {
			t.Errorf("seq %d of an entry with %d: %+v, %v", seq, p.waits.seq, v, err)
		}
	}
	leave(t, p.holder)
	proceeds(t, p.waits)
}

// A process that dies after it has removed its entry and before it has said so: the kernel says it.
func TestDeadBeforeTelling(t *testing.T) {
	p := newPass(t)
	p.remove()
	p.holder.session.endLife(false)
	if v, err := p.waits.Wait(patient(t)); err != nil || !v.Held {
		t.Errorf("%+v, %v", v, err)
	}
}

// A Wait that ends with its context may have taken the signal. It may be repeated without an
// Enqueue, and then finds what the signal was about.
func TestWaitAgainAfterSignal(t *testing.T) {
	p := newPass(t)
	who := p.remove()
	p.holder.session.store.notifier.notify(who) // as after a death, without the grant
	testkit.Eventually(t, "the signal", func() bool { return len(p.waits.signal.C()) == 1 })
	ended, end := context.WithCancel(patient(t))
	end()
	for range 64 { // each takes the signal, or sees first that its context has ended
		if v, err := p.waits.Wait(ended); !errors.Is(err, context.Canceled) {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if v, err := p.waits.Wait(patient(t)); err != nil || !v.Held {
		t.Errorf("%+v, %v", v, err)
	}
}

// Signals of both kinds, and those of older versions, which are of one kind, come out as they
// went in.
func TestSignals(t *testing.T) {
	t.Parallel()
	all := []wakeTarget{{ticket: 1}, {ticket: 2, holds: 7}, {ticket: 3, holds: maxSeq}, {ticket: 4}, {ticket: 1 << 40}}
	var b []byte
	for _, w := range all {
		b = appendSignal(b, w)
	}
	if want := bytes.Repeat([]byte{0}, wordSize*(len(all)+2)); len(b) != len(want) {
		t.Errorf("%d bytes, want %d", len(b), len(want))
	}
	for _, w := range all {
		var got wakeTarget
		if got.ticket, got.holds, b = cutSignal(b); got != w {
			t.Errorf("%+v came out as %+v", w, got)
		}
	}
	if len(b) != 0 {
		t.Errorf("%d bytes are left", len(b))
	}
}
