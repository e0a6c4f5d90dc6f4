package history

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// Time is a stamp of this machine's clock in nanoseconds. 0 is never.
type Time int64

// whole is the capacity of locks that are not counted, as in hasp's driver contract. Any
// number works that no test has as many readers as.
const whole = math.MaxInt32

// Claim is the request of an operation: units of a capacity. There is one rule for all kinds of
// locks: the units held at any time may not exceed the capacity.
type Claim struct {
	Units    int64
	Capacity int64
}

// Exclusive is the claim of a mutex, and of the writer of a read-write lock.
func Exclusive() Claim { return Claim{whole, whole} }

// Shared is the claim of a reader.
func Shared() Claim { return Claim{1, whole} }

// Permits is the claim of k permits of a semaphore of n.
func Permits(k, n int64) Claim { return Claim{k, n} }

func (c Claim) String() string {
	switch c {
	case Exclusive():
		return "exclusive"
	case Shared():
		return "shared"
	}
	return fmt.Sprintf("%d of %d", c.Units, c.Capacity)
}

// Conflicts reports whether the two claims can never be held at the same time.
func (c Claim) Conflicts(d Claim) bool {
	return c.Capacity != d.Capacity || c.Units+d.Units > c.Capacity
}

// Outcome is how an acquire or a release ended, as its caller was told.
type Outcome string

const (
	// Pending: no answer is on record; the process may have died.
	Pending Outcome = ""
	// Granted: the lock was acquired.
	Granted Outcome = "granted"
	// Busy: refused because another client has it.
	Busy Outcome = "busy"
	// Failed: certainly not acquired, and nothing was left behind.
	Failed Outcome = "failed"
	// Released: the lock was held until the release and is gone.
	Released Outcome = "released"
	// NotHeld: the release came too late; the lock had been lost.
	NotHeld Outcome = "not held"
	// Unknown: it may have happened, may yet happen, or not.
	Unknown Outcome = "unknown"
)

// Operation is one attempt to acquire and, if it was granted, the hold that followed.
type Operation struct {
	ID     string // unique in a history
	Client string
	Name   string // of the lock
	Claim  Claim

	Call, Return Time // of the acquire
	Outcome      Outcome
	Token        uint64 // the fencing token; 0 if the store gives none
	Seq          uint64 // order of entry into the queue; 0 means that Token is

	Waiting  Time // when the store had put it into the queue, as its client was told; 0 if it had not to wait, or that is not known
	Requeued bool // it lost its place in the queue on the way

	Asked    bool // Held() was asked, so LastHeld says all about the belief, Lost nothing
	LastHeld Time // just before the last Held() that said yes
	Lost     Time // when the loss was recorded

	ReleaseCall, ReleaseReturn Time
	Release                    Outcome

	Note string // errors, for the reader
}

// Certain returns the time during which the client certainly held the lock; see the
// package comment. ok is false if there is none.
func (o *Operation) Certain() (from, to Time, ok bool) {
	if o.Outcome != Granted {
		return 0, 0, false
	}
	switch {
	case o.Release == Released:
		to = o.ReleaseCall
	case o.Asked:
		to = o.LastHeld
	case o.Lost > 0 && o.ReleaseCall > 0:
		to = min(o.Lost, o.ReleaseCall)
	case o.Lost > 0:
		to = o.Lost
	}
	return o.Return, to, to > o.Return
}

// order is the operation's place in the queue as the store gave it; 0 if unknown.
func (o *Operation) order() uint64 {
	if o.Seq != 0 {
		return o.Seq
	}
	return o.Token
}

// History is a set of operations, in any order.
type History []Operation

// byName splits a history by lock name. The operations of each are in order of Call.
func (h History) byName() (names []string, ops map[string][]*Operation) {
	ops = map[string][]*Operation{}
	for i := range h {
		o := &h[i]
		if ops[o.Name] == nil {
			names = append(names, o.Name)
		}
		ops[o.Name] = append(ops[o.Name], o)
	}
	slices.Sort(names)
	for _, list := range ops {
		slices.SortStableFunc(list, func(a, b *Operation) int { return cmp.Compare(a.Call, b.Call) })
	}
	return names, ops
}

// granted keeps the operations that got the lock.
func granted(ops []*Operation) (out []*Operation) {
	for _, o := range ops {
		if o.Outcome == Granted {
			out = append(out, o)
		}
	}
	return out
}

// start is the time from which a history's readable times are counted.
func start(ops []*Operation) Time {
	t := Time(math.MaxInt64)
	for _, o := range ops {
		t = min(t, o.Call)
	}
	return t
}

// describe tells the story of an operation in one line, with times since zero.
func (o *Operation) describe(zero Time) string {
	at := func(t Time) string { return time.Duration(t - zero).String() }
	var b strings.Builder
	fmt.Fprintf(&b, "%s [%s] %s", o.Client, o.ID, o.Claim)
	if o.Token != 0 {
		fmt.Fprintf(&b, " token %d", o.Token)
	}
	if o.Seq != 0 {
		fmt.Fprintf(&b, " seq %d", o.Seq)
	}
	fmt.Fprintf(&b, ": called %s", at(o.Call))
	if o.Outcome == Pending {
		b.WriteString(", never answered")
	} else {
		fmt.Fprintf(&b, ", %s %s", o.Outcome, at(o.Return))
	}
	if o.LastHeld > 0 {
		fmt.Fprintf(&b, ", still held %s", at(o.LastHeld))
	}
	if o.Lost > 0 {
		fmt.Fprintf(&b, ", lost %s", at(o.Lost))
	}
	if o.ReleaseCall > 0 {
		fmt.Fprintf(&b, ", release called %s", at(o.ReleaseCall))
	}
	if o.Release != Pending {
		fmt.Fprintf(&b, ", %s %s", o.Release, at(o.ReleaseReturn))
	}
	if o.Note != "" {
		fmt.Fprintf(&b, " (%s)", o.Note)
	}
	return b.String()
}
