package programs

import (
	"slices"
	"time"

	"pgregory.net/rapid"
)

// scenario sometimes draws the beginning of a program in real time: a situation that takes several
// steps and the right moment. At random such situations come about once in ten thousand programs.
func (g *generator) scenario(p *Program) []Step {
	if g.fake || len(p.Clients) < 2 || p.Names[0].Permits > 0 || !g.chance(3) {
		return nil
	}
	T := g.base
	first := rapid.IntRange(0, len(p.Clients)-1).Draw(g.T, "")
	second := (first + 1) % len(p.Clients)
	moment := rapid.SampledFrom([]time.Duration{0, time.Millisecond, T / 200, T / 50, T / 20}).Draw(g.T, "")
	var scenarios [][]Step
	if slices.Contains(g.ops, Disturb) && !g.patient {
		// An entry that is used again while a member of the store is stopped has a history. The
		// member will learn it, and report it, when the history is already outdated.
		scenarios = append(scenarios, []Step{
			{Do: Lock, Client: first},
			{Do: Disturb, Time: T / 3},
			{Wait: moment, Do: Release},
			{Do: Lock, Client: first},
			{Wait: T / 50, Do: Lock, Client: second},
			{Wait: T / 2, Do: Progress},
		})
	}
	if slices.Contains(g.ops, Downgrade) {
		// Only the downgrade admits a waiter beside a writer that becomes a reader, as long as that
		// holds: at the end of the program the waiter is checked.
		scenarios = append(scenarios, []Step{
			{Do: Lock, Client: first},
			{Wait: T / 50, Do: RLock, Client: second},
			{Wait: moment, Do: Downgrade},
		})
	}
	if len(scenarios) == 0 {
		return nil
	}
	return rapid.SampledFrom(scenarios).Draw(g.T, "scenario")
}
