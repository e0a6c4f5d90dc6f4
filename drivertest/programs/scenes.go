package programs

import (
	"slices"
	"time"

	"pgregory.net/rapid"
)

// scene draws how a program in real time begins, now and then: with what takes several steps to
// come about, and a moment to meet. At random they come about once in ten thousand programs.
func (g *generator) scene(p *Program) []Step {
	if g.fake || len(p.Clients) < 2 || p.Names[0].Permits > 0 || !g.chance(3) {
		return nil
	}
	T := g.base
	first := rapid.IntRange(0, len(p.Clients)-1).Draw(g.T, "")
	second := (first + 1) % len(p.Clients)
	moment := rapid.SampledFrom([]time.Duration{0, time.Millisecond, T / 200, T / 50, T / 20}).Draw(g.T, "")
	var scenes [][]Step
	if slices.Contains(g.ops, Disturb) && !g.patient {
		// What is used again while a member of the store stands still has a past, of which that one
		// will hear, and tell, when the present is already there.
		scenes = append(scenes, []Step{
			{Do: Lock, Client: first},
			{Do: Disturb, Time: T / 3},
			{Wait: moment, Do: Release},
			{Do: Lock, Client: first},
			{Wait: T / 50, Do: Lock, Client: second},
			{Wait: T / 2, Do: Progress},
		})
	}
	if slices.Contains(g.ops, Downgrade) {
		// Who waits beside a writer that becomes a reader is let in by that, and by nothing else for as
		// long as it holds: at the end of the program somebody looks.
		scenes = append(scenes, []Step{
			{Do: Lock, Client: first},
			{Wait: T / 50, Do: RLock, Client: second},
			{Wait: moment, Do: Downgrade},
		})
	}
	if len(scenes) == 0 {
		return nil
	}
	return rapid.SampledFrom(scenes).Draw(g.T, "scene")
}
