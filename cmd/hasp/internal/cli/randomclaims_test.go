//go:build unix

package cli

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hasplock/hasp/cmd/hasp/internal/cli/hold"
)

// wish is a thing to ask for: the arguments of hasp, and how much it takes of each name.
type wish struct {
	args  string
	names []string
	takes int
}

var wishes = []wish{
	{"x", []string{"x"}, 9}, {"y", []string{"y"}, 9}, {"-s x", []string{"x"}, 1}, {"-s y", []string{"y"}, 1},
	{"-l x -l y", []string{"x", "y"}, 9}, {"--permits 2 p", []string{"p"}, 1}, {"--permits 2/2 p", []string{"p"}, 2},
}

// room is how much of a name there is to take.
func room(name string) int {
	if name == "p" {
		return 2
	}
	return 9
}

// note is shown by the command line of a background holder.
func (w wish) note() string { return "--note=" + strings.ReplaceAll(w.args, " ", "") }

// claim is a request by hold --background, as its agent knows it.
type claim struct {
	wish
	state    string // waiting, held; over: told later; killed: the holder was; unknown: a call was killed
	code     int    // of one that is over
	since    time.Time
	maxHold  time.Duration // 0: none
	maxWait  bool
	beside   bool // it has asked for others before, so a deadlock may end the wait
	expires  bool // the store's locks do
	place    int
	from, at time.Time // held at least from the one to the other
}

// certain says that nothing but the agent ends it.
func (r *claim) certain() bool {
	return !r.expires && r.maxHold == 0 && (r.state == "held" || r.state == "waiting" && !r.maxWait && !r.beside)
}

// codes are those that who --mine may answer.
func (r *claim) codes() (codes []int) {
	switch {
	case r == nil || r.state == "killed":
		return []int{76}
	case r.state == "over":
		return []int{r.code}
	case r.state == "unknown":
		return []int{0, 69, 75, 76, 78}
	case r.state == "waiting":
		codes = []int{75}
		if r.beside {
			codes = append(codes, 78)
		}
	}
	if r.maxHold > 0 || r.expires {
		codes = append(codes, 76)
	}
	if r.state == "waiting" && r.maxWait || r.expires {
		codes = append(codes, 69) // the machine was too slow for the wait, or for the TTL
	}
	return append(codes, 0)
}

// releaseCodes are those of release --mine: a place is given up with success.
func (r *claim) releaseCodes() []int {
	codes := r.codes()
	if r != nil && r.state == "waiting" && !r.maxWait {
		codes = slices.DeleteFunc(codes, func(code int) bool { return code == 75 })
	}
	return codes
}

// joins is for a request that may have begun anew, with other bounds, at the end of the queue.
func (r *claim) joins(next *claim) {
	if r.maxHold != next.maxHold {
		r.maxHold = 1
	}
	r.maxWait, r.beside, r.place = r.maxWait || next.maxWait, r.beside || next.beside, 0
}

// together are the codes of one question about several: the first that is not 0.
func together(all []*claim, codes func(*claim) []int) (may []int) {
	if len(all) == 0 {
		return []int{76}
	}
	zero := true
	for _, r := range all {
		zero = zero && slices.Contains(codes(r), 0)
		may = append(may, slices.DeleteFunc(codes(r), func(code int) bool { return code == 0 })...)
	}
	if zero {
		may = append(may, 0)
	}
	return may
}

// askCodes are those of hold --background. What an agent has is answered, or told once that it is
// over; what meets it is refused. A holder that was killed is told first of all.
func (a *actor) askCodes(next *claim, met []*claim, same bool) (codes []int) {
	anew := []int{0, 75}
	if next.beside {
		anew = append(anew, 78)
	}
	if next.maxWait || next.expires {
		anew = append(anew, 69)
	}
	switch {
	case len(met) == 0:
		codes = anew
	case !same:
		codes = []int{78}
	case met[0].state == "over" && met[0].code != 76:
		codes = anew
	case met[0].state == "waiting" && !met[0].certain() || met[0].state == "unknown":
		codes = append(anew, met[0].codes()...)
	default:
		codes = met[0].codes()
	}
	if a.untold || len(a.in("killed", "unknown")) > 0 {
		codes = append(codes, 76)
	}
	return codes
}

// requests are those of some names, or all.
func (a *actor) requests(names ...string) (all []*claim) {
	if len(names) == 0 {
		names = slices.Sorted(maps.Keys(a.has))
	}
	for _, name := range names {
		if r := a.has[name]; r != nil && !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// in are those in one of the states.
func (a *actor) in(states ...string) []*claim {
	return slices.DeleteFunc(a.requests(), func(r *claim) bool { return !slices.Contains(states, r.state) })
}

func (a *actor) add(r *claim) {
	for _, name := range r.names {
		a.has[name] = r
	}
}

func (a *actor) forget(all ...*claim) {
	for _, r := range all {
		maps.DeleteFunc(a.has, func(_ string, of *claim) bool { return of == r })
	}
}

// believed notes that a lock was held until a time. What may end without the agent is certain up to
// the last question, or for --max-hold since the last answer that it waits.
func (a *actor) believed(all []*claim, at time.Time) {
	for _, r := range all {
		to := at
		if r.expires && r.at.Before(to) {
			to = r.at
		}
		if end := r.since.Add(r.maxHold); r.maxHold > 0 && end.Before(to) {
			to = end
		}
		if r.state == "held" {
			for _, name := range r.names {
				a.had(span{a.name, name, r.takes, r.from, to})
			}
			r.from = at
		}
	}
}

// learn takes over what an answer says of a request. An agent goes by the exit code.
func (a *actor) learn(r *claim, s hold.State, code int, sent time.Time) {
	switch {
	case code == 0 && r.state != "held":
		r.state, r.from, r.at = "held", time.Now(), sent
	case code == 0:
		r.at = sent
	case s.State == "waiting":
		if r.place > 0 && s.Place > r.place && len(r.names) == 1 {
			a.fault("order", "%s: place %d of %q, and then %d", a.name, r.place, r.args, s.Place)
		}
		r.state, r.since, r.place = "waiting", sent, s.Place
	case s.State == "lost" || s.State == "ended":
		a.believed([]*claim{r}, time.Now())
		r.state, r.code, r.place = "over", code, 0
	}
}
