//go:build unix

package torture

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// Planned is one fault of a plan.
type Planned struct {
	At     time.Duration `json:"at_ns"` // since the workers began
	Kind   Kind          `json:"kind"`
	Worker int           `json:"worker"` // the process to disturb, from 0; the next one that is not disturbed already
	Name   int           `json:"name"`   // of the lock that it is to hold then, from 1; 0 is the control's
	Server int           `json:"server"` // of the faults of a server: which one, from 0. The worker then only holds
	Lasts  float64       `json:"ttls"`   // of pause, hold and serverpause, in TTLs as granted

	// AtRelease loses the answer to the release, not to a renewal; of ackloss only.
	AtRelease bool `json:"at_release,omitempty"`
}

func (p Planned) String() string {
	name := fmt.Sprint("name ", p.Name)
	if p.Name == 0 {
		name = "the control"
	}
	text := fmt.Sprintf("%8.3fs  %-7s process %d while it holds %s", p.At.Seconds(), p.Kind, p.Worker, name)
	if p.Kind.OfServer() {
		text = fmt.Sprintf("%8.3fs  %-13s server %d while process %d holds %s", p.At.Seconds(), p.Kind, p.Server, p.Worker, name)
	}
	switch {
	case p.Kind == Pause || p.Kind == Hold || p.Kind == ServerPause:
		text += fmt.Sprintf(", for %.2f TTL", p.Lasts)
	case p.AtRelease:
		text += ", at its release"
	}
	return text
}

// Plan draws the faults of a run. The same seed and settings give the same plan. Which fault of it
// is carried out depends on who gets which lock when.
func Plan(c Config) []Planned {
	r := rand.New(rand.NewPCG(c.Seed, 24))
	clients := slices.DeleteFunc(slices.Clone(c.Faults), Kind.OfServer)
	servers := slices.DeleteFunc(slices.Clone(c.Faults), func(k Kind) bool { return !k.OfServer() })
	plan := append(planClients(c, r, clients), planServers(c, r, servers)...)
	slices.SortStableFunc(plan, func(a, b Planned) int { return cmp.Compare(a.At, b.At) })
	return plan
}

// planServers has the server work undisturbed for most of the time: nothing is granted while it is
// away, and nothing can be lost that was not granted. Each kind has its turn.
func planServers(c Config, r *rand.Rand, kinds []Kind) (plan []Planned) {
	if len(kinds) == 0 {
		return nil
	}
	every := max(6*c.TTL, 5*time.Second)
	for at := every / 2; at < c.For; at += time.Duration((0.5 + r.Float64()) * float64(every)) {
		p := Planned{At: at, Kind: kinds[len(plan)%len(kinds)], Worker: r.IntN(c.Processes), Name: r.IntN(1 + c.Names), Lasts: 1.15 + 0.85*r.Float64()}
		if c.Servers > 1 {
			p.Server = r.IntN(c.Servers)
		}
		plan = append(plan, p)
	}
	return plan
}

func planClients(c Config, r *rand.Rand, kinds []Kind) (plan []Planned) {
	if len(kinds) == 0 {
		return nil
	}
	telling := telling(kinds)
	for at := c.TTL / 2; at < c.For; at += time.Duration((0.55 + 0.9*r.Float64()) * float64(c.Every)) {
		p := Planned{
			At: at, Kind: kinds[r.IntN(len(kinds))], Worker: r.IntN(c.Processes), Name: 1 + r.IntN(c.Names),
			Lasts: 1.15 + 0.85*r.Float64(), AtRelease: r.IntN(2) == 0,
		}
		if n := len(plan); n%ofControl == 1 && len(telling) > 0 {
			p.Name, p.Kind = 0, telling[n/ofControl%len(telling)]
		}
		p.AtRelease = p.AtRelease && p.Kind == AckLoss
		plan = append(plan, p)
	}
	return plan
}

// ofControl: one fault in so many is for the control.
const ofControl = 4

// telling are the kinds under which a naive lock fails, with cut as the first, since it alone takes
// a lock that is bound to a connection. Being killed, or losing an answer, makes no naive lock
// fail.
func telling(kinds []Kind) (all []Kind) {
	for _, k := range []Kind{Cut, Pause, Hold} {
		if slices.Contains(kinds, k) {
			all = append(all, k)
		}
	}
	return all
}

// Enough is how long a plan takes to have three faults of each kind for the control, so that it is
// caught on every kind of store. Most runs need less. 0: none of its faults makes a naive lock
// fail.
func Enough(c Config) time.Duration {
	n := 3 * ofControl * len(telling(c.Faults))
	return (time.Duration(n) * c.Every).Round(time.Second)
}
