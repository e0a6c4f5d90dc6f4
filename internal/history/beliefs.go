package history

// Beliefs finds answers that contradict each other about one and the same hold: it was
// held after it had been lost, released with success after it had been lost, or held
// after its release.
func Beliefs(h History) []Violation {
	return EachName(h, "beliefs", func(c *CheckRun, ops []*Operation) {
		for _, o := range granted(ops) {
			lost := o.Lost > 0
			switch {
			case lost && o.LastHeld > o.Lost:
				c.Report([]*Operation{o}, "Held() said yes after the loss")
			case lost && o.Release == Released && o.ReleaseCall > o.Lost:
				c.Report([]*Operation{o}, "Release reported success after the loss")
			case o.Release == Released && o.LastHeld > o.ReleaseReturn:
				c.Report([]*Operation{o}, "Held() said yes after the release")
			}
		}
	})
}
