package programs

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Program is a list of steps of a few clients on a few names, one after the other. An operation
// that a step starts may still run when the next begins: a program waits only where a Step says so.
type Program struct {
	Clients []Client
	Names   []Name
	Steps   []Step
}

// Client is one machine of a program.
type Client struct {
	Store  int           // one of the stores
	TTL    time.Duration // 0: the base of the run
	Margin time.Duration // 0: hasp's default
	Slow   time.Duration // the greatest delay of the answers of the store's servers, if there is a network
}

// Name is a lock's, on each store.
type Name struct {
	Permits int64 // of a semaphore; 0: a mutex, read-write lock or election
}

// Step is one action of a client or an operator, or one fault. Its Op says which fields it uses;
// numbers are taken modulo the available count, so that every Step has a meaning.
type Step struct {
	Wait   time.Duration // before the step
	Do     Op
	Client int
	Name   int
	Lease  int           // one of the leases held at that moment, or of the running acquisitions
	Units  int64         // of a semaphore
	Time   time.Duration // how long a fault lasts, or a bound on the wait (0: none)
	Opts   Options
	Lose   bool          // the answer to its first call of the store is lost
	Late   time.Duration // that answer is late by this time
}

// Options are those of an acquisition.
type Options struct {
	Within    bool // with the context of Lease, as work under it would
	Reentrant bool
	MinHold   time.Duration
	MaxHold   time.Duration
	Stall     time.Duration
	Ask       bool
	Revocable bool
	Deadlock  bool // FailOnDeadlock
	Do        bool // by Do, DoAll or Run: the function returns when the hold is given up
	Bind      bool // Within the context of Bind
}

// Op is the operation of a Step.
type Op string

// The operations. Of a client: those that acquire (Client, Name, Opts, Time as a bound; Lease
// where Opts.Within), and those on a lease that is held (Lease).
const (
	Lock       Op = "Lock"
	TryLock    Op = "TryLock"
	RLock      Op = "RLock"
	TryRLock   Op = "TryRLock"
	Acquire    Op = "Acquire" // Units
	TryAcquire Op = "TryAcquire"
	Campaign   Op = "Campaign"
	LockAll    Op = "LockAll" // Name and the one after it
	LockAny    Op = "LockAny" // Name or the one after it
	Pool       Op = "Pool"    // any of the names, as the slots of a pool

	Release   Op = "Release"
	Downgrade Op = "Downgrade"
	Publish   Op = "Publish"
	Progress  Op = "Progress"
	Cancel    Op = "Cancel" // the context of the acquisition Lease
	Evict     Op = "Evict"  // an operator does: entry Lease of Name
	Close     Op = "Close"  // Client, if another one is left

	// Each wait of Client that begins within a TTL ends after Time, and is repeated, with no
	// request between, for twice as long, and so on. It is no fault: a driver stands it, and
	// nothing that a program demands is different.
	ShortWaits Op = "ShortWaits"
)

// The faults: of the connection of Client, and for Time where they last.
const (
	LoseAnswers  Op = "LoseAnswers" // the next calls reach the store, their answers are lost; Units of them
	FailRequests Op = "FailRequests"
	LateAnswers  Op = "LateAnswers"  // Time late
	LateRequests Op = "LateRequests" // Time late, even those whose caller no longer waits
	Silence      Op = "Silence"      // nothing goes through, for Time
	Deaf         Op = "Deaf"         // the store's reports of gone entries and sessions are lost, for Time
	CutCalls     Op = "CutCalls"     // the next calls are given Time, and no answer after it; Units of them
	Reset        Op = "Reset"        // the connections break, where there is a network to do that
	Kill         Op = "Kill"         // nothing ever passes again, as when the machine burns
	Forget       Op = "Forget"       // the store loses its entries, where the run can do that; Client does not learn of it for Time
	Disturb      Op = "Disturb"      // a disturbance of the store that it must survive, for Time
)

// GoString is the program as Go code, for Replay.
func (p Program) GoString() string {
	var b strings.Builder
	list := func(field string, elements reflect.Value) {
		fmt.Fprintf(&b, "\t%s: []programs.%s{\n", field, elements.Type().Elem().Name())
		for i := range elements.Len() {
			fmt.Fprintf(&b, "\t\t%s,\n", literal(elements.Index(i)))
		}
		b.WriteString("\t},\n")
	}
	b.WriteString("programs.Program{\n")
	list("Clients", reflect.ValueOf(p.Clients))
	list("Names", reflect.ValueOf(p.Names))
	list("Steps", reflect.ValueOf(p.Steps))
	b.WriteString("}")
	return b.String()
}

// literal writes a struct without its type, and without zero fields.
func literal(v reflect.Value) string {
	var parts []string
	for i := range v.NumField() {
		f := v.Field(i)
		if f.IsZero() {
			continue
		}
		parts = append(parts, v.Type().Field(i).Name+": "+value(f))
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func value(v reflect.Value) string {
	switch x := v.Interface().(type) {
	case time.Duration:
		return duration(x)
	case Op:
		return "programs." + string(x)
	case Options:
		return "programs.Options" + literal(v)
	default:
		return fmt.Sprint(x)
	}
}

// duration writes whole units where that loses nothing.
func duration(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Second, "time.Second"}, {time.Millisecond, "time.Millisecond"}, {time.Microsecond, "time.Microsecond"}} {
		if d%u.size == 0 {
			return fmt.Sprintf("%d * %s", d/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d", int64(d))
}
