// Package takennames remembers which locks were not free. It is for drivers that ask for a free lock
// by one request, and for one that is taken by two: they begin with the second where the name was
// taken lately.
package takennames

import "sync"

// Names are those whose lock was taken when it was asked for lately. The zero value is ready, and all
// methods may be called at once from many goroutines. It remembers 10,000 names, and forgets all of
// them when there are more.
type Names struct {
	mu   sync.Mutex
	left map[string]int // how often it must be free before it counts as free
}

const (
	most  = 10000 // bounds what is remembered
	times = 8
)

// Has reports whether a name is one of them.
func (n *Names) Has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.left[name] > 0
}

// Met notes how it was this time.
func (n *Names) Met(name string, taken bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case taken:
		if n.left == nil || len(n.left) >= most {
			n.left = map[string]int{}
		}
		n.left[name] = times
	case n.left[name] > 1:
		n.left[name]--
	default:
		delete(n.left, name)
	}
}
