//go:build unix

package torture

import (
	"slices"

	"github.com/hasplock/hasp/internal/history"
)

// excuse is why what a holder believed does not count, from a moment on.
type excuse int

const (
	none      excuse = iota
	cutOff           // its connection had ended: see untilCut
	forgotten        // the server had, where the store does not promise that this makes no second holder
)

// forgetting are the faults after which the server may have granted again what it had granted
// before.
func (r *run) forgetting() (all []Fault) {
	for _, f := range r.faults {
		if f.Kind == ServerForget && r.Server.MayForget(false, r.Adapter == "") || f.Kind == ServerRestart && r.Server.MayForget(true, r.Adapter == "") {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b Fault) int { return int(a.From - b.From) })
	return all
}

// untilForgotten ends each belief with the server that granted it. A grant of which eitherLife says
// that it may be of the life before or after proves nothing.
//
// It notes in excused whose beliefs are cut short, and returns the faults.
func untilForgotten(ours history.History, forgets []Fault, ttl history.Time, excused map[string]excuse) (history.History, []Fault) {
	if len(forgets) == 0 {
		return ours, nil
	}
	ours = slices.Clone(ours)
	for i := range ours {
		o := &ours[i]
		n := slices.IndexFunc(forgets, func(f Fault) bool { return o.Return <= f.To || eitherLife(o, f, ttl) })
		if n < 0 || o.Outcome != history.Granted {
			continue
		}
		died := forgets[n].From
		if _, to, ok := o.Certain(); !ok || to <= died {
			continue
		}
		excused[o.ID] = forgotten
		o.Asked, o.LastHeld = true, min(o.LastHeld, died)
		if o.Release == history.Released { // and what was gone already was found gone
			o.Release = history.Unknown
		}
	}
	return ours, forgets
}

// eitherLife says that o may have been granted before the server was killed, or after. It was heard
// of after the kill and before we knew that the server serves again: the answer was on the way, or
// the client was quicker than we. Or the process was late with its answer, as on a busy machine it
// may be for longer than the fault takes: then it was asked for before, and what it believes is
// over within the TTL, since the next server does not renew it.
func eitherLife(o *history.Operation, f Fault, ttl history.Time) bool {
	if o.Outcome != history.Granted || o.Return <= f.From || o.Call > f.To {
		return false
	}
	_, to, _ := o.Certain()
	return o.Return <= f.To || to <= f.To+ttl
}

// epochs parts a history where the server forgot: tokens and exclusion are promised within each
// part. Grants of which it is not known to which part they belong are in none.
func epochs(ours history.History, forgets []Fault, ttl history.Time) []history.History {
	parts := make([]history.History, 1+len(forgets))
	for i := range ours {
		o, n := &ours[i], 0
		for n < len(forgets) && o.Return > forgets[n].To {
			n++
		}
		if !slices.ContainsFunc(forgets, func(f Fault) bool { return eitherLife(o, f, ttl) }) {
			parts[n] = append(parts[n], *o)
		}
	}
	return parts
}
