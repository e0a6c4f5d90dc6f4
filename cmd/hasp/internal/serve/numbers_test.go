package serve

import (
	"math/rand/v2"
	"testing"
)

// The window answers as a set that remembers everything would, and "used" for what is below it.
func TestNumbers(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		n, used, released := &numbers{}, map[uint64]bool{}, map[uint64]bool{}
		top := uint64(0)
		for range 4 * numbersKept {
			i := max(1, top+uint64(r.IntN(40))-min(top, uint64(r.IntN(2*numbersKept))))
			if r.IntN(500) == 0 {
				i += uint64(r.IntN(3 * numbersKept)) // the whole window is passed at once
			}
			inside := i > top || top-i < numbersKept
			if free, want := n.free(i), inside && !used[i]; free != want {
				t.Fatalf("%d below %d is free: %t, want %t", i, top, free, want)
			}
			if was, want := n.wasReleased(i), inside && released[i]; was != want {
				t.Fatalf("%d below %d was released: %t, want %t", i, top, was, want)
			}
			switch r.IntN(3) {
			case 0:
				n.use(i)
				used[i], top = true, max(top, i)
			case 1:
				if used[i] {
					n.release(i)
					released[i] = true
				}
			}
		}
	}
}
