package pglock

import "sync"

// takenNames are names whose lock was taken when it was asked for lately.
type takenNames struct {
	mu   sync.Mutex
	left map[string]int // how often it must be free before it counts as free
}

const (
	takenMost = 10000 // bounds what is remembered
	takenFor  = 8
)

func (n *takenNames) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.left[name] > 0
}

func (n *takenNames) met(name string, taken bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case taken:
		if n.left == nil || len(n.left) >= takenMost {
			n.left = map[string]int{}
		}
		n.left[name] = takenFor
	case n.left[name] > 1:
		n.left[name]--
	default:
		delete(n.left, name)
	}
}
