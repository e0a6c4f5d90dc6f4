package linear

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/hasplock/hasp/internal/history"
)

// sim is a correct lock service in simulated time, with everything that makes histories
// hard to check: a network that delays, answers that are lost, holders that are stopped,
// lose their lease or are killed, and readers, writers and permits in one queue. It
// plays out what a store and its clients do and records only what the clients saw.
type sim struct {
	*rand.Rand
	now    history.Time
	agenda agenda
	queue  []*simEntry // of the one lock
	token  uint64
	nextID int
	past   history.History
}

type simEntry struct {
	op      *history.Operation
	holds   bool
	granted func() // called when it begins to hold
}

// kinds of locks that a simulated history can be about.
var simKinds = map[string]func(*rand.Rand) history.Claim{
	"mutex": func(*rand.Rand) history.Claim { return history.Exclusive() },
	"readers and writers": func(r *rand.Rand) history.Claim {
		if r.IntN(3) == 0 {
			return history.Exclusive()
		}
		return history.Shared()
	},
	"semaphore": func(r *rand.Rand) history.Claim { return history.Permits(1+r.Int64N(3), 4) },
}

// simulate lets clients make rounds attempts each.
func simulate(seed uint64, claim func(*rand.Rand) history.Claim, clients, rounds int, faults bool) history.History {
	s := &sim{Rand: rand.New(rand.NewPCG(seed, 1)), now: 1000}
	for c := range clients {
		s.attempt(fmt.Sprint("c", c), rounds, claim, faults)
	}
	for len(s.agenda) > 0 {
		next := heap.Pop(&s.agenda).(appointment)
		s.now = next.at
		next.do()
	}
	return s.past
}

// after runs do once some time has passed, up to about most.
func (s *sim) after(most int64, do func()) {
	s.nextID++
	heap.Push(&s.agenda, appointment{s.now + 1 + history.Time(s.Int64N(most)), s.nextID, do})
}

// note puts an operation on record at its end.
func (s *sim) note(o *history.Operation) { s.past = append(s.past, *o) }

func (s *sim) attempt(client string, rounds int, claim func(*rand.Rand) history.Claim, faults bool) {
	if rounds == 0 {
		return
	}
	again := func() { s.attempt(client, rounds-1, claim, faults) }
	s.after(50, func() {
		o := &history.Operation{ID: fmt.Sprint(client, ".", rounds), Client: client, Name: "x", Claim: claim(s.Rand), Call: s.now}
		try, doomed := s.IntN(5) == 0, faults && s.IntN(10) == 0
		s.after(20, func() { // the request arrives
			e := &simEntry{op: o}
			s.token += 1 + s.Uint64N(3)
			o.Token = s.token
			switch {
			case try && !s.fits(e):
				o.Token = 0
				s.after(20, func() { o.Return, o.Outcome = s.now, history.Busy; s.note(o); again() })
				return
			case doomed: // the client gives up; the fate of its entry is unknown
				e.granted = func() {}
				s.after(100, func() { o.Return, o.Outcome, o.Token = s.now, history.Unknown, 0; s.note(o); again() })
				s.after(400, func() { s.leave(e) })
			default:
				e.granted = func() { s.after(20, func() { s.hold(e, faults, again) }) }
			}
			s.queue = append(s.queue, e)
			s.admit()
		})
	})
}

func (s *sim) fits(e *simEntry) bool {
	sum := e.op.Claim.Units
	for _, q := range s.queue {
		if q == e {
			break
		}
		sum += q.op.Claim.Units
	}
	return sum <= e.op.Claim.Capacity
}

func (s *sim) admit() {
	for _, e := range slices.Clone(s.queue) {
		if !e.holds && s.fits(e) {
			e.holds = true
			e.granted()
		}
	}
}

func (s *sim) leave(e *simEntry) {
	s.queue = slices.DeleteFunc(s.queue, func(q *simEntry) bool { return q == e })
	s.admit()
}

// hold runs a client after the grant has reached it.
func (s *sim) hold(e *simEntry, faults bool, again func()) {
	o := e.op
	o.Return, o.Outcome = s.now, history.Granted
	if faults && s.IntN(4) == 0 {
		s.lose(e, again)
		return
	}
	s.after(60, func() {
		if s.IntN(2) == 0 {
			o.Asked, o.LastHeld = true, s.now
		}
		s.after(10, func() {
			o.ReleaseCall = s.now
			s.after(20, func() {
				s.leave(e)
				s.after(20, func() {
					o.ReleaseReturn, o.Release = s.now, history.Released
					if faults && s.IntN(5) == 0 {
						o.Release = history.Unknown
					}
					s.note(o)
					again()
				})
			})
		})
	})
}

// lose plays a hold that is not released: the client believes in it for a while, and some
// time after that the store removes it. What the client records of it varies.
func (s *sim) lose(e *simEntry, again func()) {
	o, how := e.op, s.IntN(3)
	s.after(60, func() { // the last moment of belief
		switch how {
		case 0: // killed, its Held() was asked or not
			if s.IntN(2) == 0 {
				o.Asked, o.LastHeld = true, s.now
			}
			s.note(o)
			again() // as another process
		case 1: // told in time, and taken at its word
			o.Lost = s.now
			s.note(o)
			again()
		case 2: // stopped, and notices long after the store has given the lock away
			o.Asked = true
			if s.IntN(2) == 0 {
				o.LastHeld = s.now
			}
			s.after(500, func() {
				o.Lost = s.now
				o.ReleaseCall, o.ReleaseReturn, o.Release = s.now+1, s.now+2, history.NotHeld
				s.note(o)
				again()
			})
		}
		s.after(200, func() { s.leave(e) })
	})
}

type appointment struct {
	at history.Time
	id int // first come, first served
	do func()
}

type agenda []appointment

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].id < a[j].id
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(appointment)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}
