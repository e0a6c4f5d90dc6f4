//go:build unix

package torture

import (
	"cmp"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/history"
)

// disturbed are times of each client. What happens to one that is disturbed, and up to a TTL after,
// is no measure of the lock.
type disturbed map[string][]Stall

func (d disturbed) add(s Stall) { d[s.Client] = append(d[s.Client], s) }

// disturbances are those, and the times in which each client did not run.
func disturbances(faults []Fault, idle []Stall, after history.Time) (all, stopped disturbed) {
	all, stopped = disturbed{}, disturbed{}
	for _, s := range idle {
		if s.Client != "" { // the coordinator's: the workers may have run, but their answers were late
			stopped.add(s)
		}
		s.To += after
		all.add(s)
	}
	for _, f := range faults {
		if f.Kind == Pause {
			stopped.add(Stall{Client: f.Client, From: f.From, To: f.To})
		}
		all.add(Stall{Client: f.Client, From: f.From, To: f.To + after})
	}
	return all, stopped
}

// at reports whether a client was disturbed at any time between two.
func (d disturbed) at(client string, from, to history.Time) bool {
	during := func(s Stall) bool { return s.From <= to && s.To >= from }
	return slices.ContainsFunc(d[client], during) || slices.ContainsFunc(d[""], during) // "": all of them
}

// anyAt is at for all clients.
func (d disturbed) anyAt(from, to history.Time) bool {
	for client := range d {
		if d.at(client, from, to) {
			return true
		}
	}
	return false
}

// measure counts and measures what no check of package history reports.
func (v *Verdict) measure(ours history.History, d, stopped disturbed, excused map[string]excuse, traits driver.Traits) {
	inversions := 0
	history.EachName(ours, "", func(_ *history.CheckRun, ops []*history.Operation) {
		var grants []*history.Operation
		for _, o := range ops {
			switch o.Outcome {
			case history.Granted:
				grants = append(grants, o)
			case history.Unknown, history.Pending:
				v.Unanswered++
			}
		}
		slices.SortFunc(grants, func(a, b *history.Operation) int { return cmp.Compare(a.Return, b.Return) })
		v.Acquisitions += len(grants)
		for i, o := range grants {
			if !d.at(o.Client, o.Return, max(o.Return, over(o))) {
				v.Undisturbed++
			}
			v.overlap(o, grants[:i], grants[i+1:], d, excused[o.ID])
			if i+1 < len(grants) {
				v.handOver(o, grants[i+1], d, stopped, excused[o.ID], traits)
			}
			inversions += overtakers(o, grants[:i], d)
		}
	})
	if v.Ordered = traits.FIFO; v.Ordered {
		v.Inversions = &inversions
	}
	slices.Sort(v.Margins)
	if n := len(v.Margins); n > 0 {
		v.MarginMin, v.MarginMid = &v.Margins[0], &v.Margins[n/2]
	}
}

// overlap classifies what o did after others had been granted the lock. earlier and later are in
// order of grant.
func (v *Verdict) overlap(o *history.Operation, earlier, later []*history.Operation, d disturbed, why excuse) {
	end := over(o)
	if o.ReleaseCall == 0 {
		end = o.LastHeld // killed: what it last knew
	}
	for _, b := range later {
		if b.Return >= end {
			return
		}
		_, to, certain := o.Certain()
		_, _, other := b.Certain() // or it may have been granted, and lost, before o was
		switch {
		case certain && other && to > b.Return:
			v.Overlaps.Broken++
			if o.Release == history.Released {
				v.FalseEnds++
			}
		case o.Lost > 0 && o.Lost <= b.Return:
			v.Overlaps.Told++
		case why == cutOff:
			v.Overlaps.CutOff++
		case why == forgotten:
			v.Overlaps.Forgot++
		case v.takenFrom(o, b, earlier, d):
			v.Overlaps.Broken++
		default:
			v.Overlaps.InFlight++
		}
	}
}

// takenFrom reports whether b was granted the lock though o, whom nothing had disturbed, had it by
// then for less than a TTL. No lock may do that, also if it tells o so afterwards: one that asks
// its store who has the key answers "lost" as soon as another has overwritten or removed it.
//
// The lock is o's since grantedSince at the earliest. A lease that was there before the lock, as a
// session's, is as old at most. b may have been granted the lock before o was, and have heard of it
// late: then b was disturbed.
func (v *Verdict) takenFrom(o, b *history.Operation, earlier []*history.Operation, d disturbed) bool {
	from := v.grantedSince(o, earlier)
	first := b.Call < o.Return && d.at(b.Client, o.Return, b.Return)
	return !first && b.Return < from+v.ttl() && !d.at(o.Client, from, b.Return)
}

// grantedSince is the earliest time at which the store may have granted o the lock: o had asked by
// then, and heard of it at most a third of a TTL later, of which noteStalls does not note one half,
// and the other is for the server.
//
// An adapter stands still without a note while it waits for the lock, so it may have been granted
// the lock long before it says so. But not before the one that held it when o asked has released
// it.
func (v *Verdict) grantedSince(o *history.Operation, earlier []*history.Operation) history.Time {
	if v.Adapter == "" {
		return max(o.Call, o.Return-v.ttl()/3)
	}
	for _, x := range slices.Backward(earlier) {
		if x.Return > o.Call {
			continue
		}
		if x.Release == history.Released {
			return min(max(o.Call, x.ReleaseCall), o.Return)
		}
		break
	}
	return o.Call
}

func (v *Verdict) ttl() history.Time { return history.Time(v.TTL * float64(time.Second)) }

// handOver measures the time between the end of one hold and the next grant.
func (v *Verdict) handOver(o, next *history.Operation, d, stopped disturbed, why excuse, traits driver.Traits) {
	if o.Lost > 0 {
		v.Losses++
		// One that does not run cannot be told.
		if why == none && !stopped.at(o.Client, max(o.LastHeld, o.Return), o.Lost) {
			v.Margins = append(v.Margins, seconds(next.Return-o.Lost))
			if v.toldLate(o, next, d, traits) {
				v.ToldLate++
			}
		}
		return
	}
	waited := next.Waiting > 0 && next.Waiting < o.ReleaseCall
	if o.Release != history.Released || !waited || d.anyAt(o.ReleaseCall, next.Return) {
		return
	}
	if took := seconds(max(0, next.Return-o.ReleaseReturn)); v.HandOver == nil || took > *v.HandOver {
		v.HandOver = &took
	}
}

// toldLate reports whether a holder that ran was told of the loss after next had been granted the
// lock, by more than chance. Hasp's leases end by the holder's own clock, also while its network is
// disturbed: only a stall that was not noted makes that late. Those that are bound to a connection
// have the bound of S5. Another lock may have to ask its store, so a holder with a disturbed
// network cannot be told; one that is not disturbed can, within a TTL for programs that are slow on
// a busy machine.
func (v *Verdict) toldLate(o, next *history.Operation, d disturbed, traits driver.Traits) bool {
	late := o.Lost - next.Return
	switch {
	case v.Adapter == "" && traits.Liveness == driver.ConnectionBound:
		return late > cutOffBound
	case v.Adapter == "":
		return late > v.ttl()/6
	}
	first := next.Call < o.Return && d.at(next.Client, o.Return, next.Return)
	return late > v.ttl() && !first && !d.at(o.Client, o.Return, o.Lost)
}

// overtakers counts those that asked after o was in the queue, and held before it did.
func overtakers(o *history.Operation, earlier []*history.Operation, d disturbed) (n int) {
	if _, _, certain := o.Certain(); !certain || o.Waiting == 0 || o.Requeued || d.at(o.Client, o.Waiting, o.Return) {
		return 0
	}
	for i := len(earlier) - 1; i >= 0 && earlier[i].Return > o.Waiting; i-- {
		if earlier[i].Call > o.Waiting {
			n++
		}
	}
	return n
}

// cutOffBound is for how long the holder of a lock that is bound to a connection may believe after
// the connection has ended: GUARANTEES.md, S5.
const cutOffBound = 12 * history.Time(1e9)

// untilCut is for stores whose locks are bound to a connection: these have no margin between the
// loss and the next grant, and promise only that a holder is told in time. So what a holder
// believed after a fault ended its connection, until it was told, counts for nothing, if it was
// told within the bound. It returns the ids of such holds.
func untilCut(ours history.History, faults []Fault) (history.History, map[string]excuse) {
	ours, excused := slices.Clone(ours), map[string]excuse{}
	for i := range ours {
		o := &ours[i]
		told := o.Lost
		if told == 0 && o.Release == history.NotHeld {
			told = o.ReleaseReturn
		}
		for _, f := range faults {
			its := o.Client == f.Client && f.Kind != Pause || f.Client == "" && f.Kind != ServerPause
			during := its && o.Return <= f.To && told >= f.From
			if during && told <= f.To+cutOffBound && o.LastHeld > f.From {
				o.LastHeld, excused[o.ID] = f.From, cutOff
			}
		}
	}
	return ours, excused
}
