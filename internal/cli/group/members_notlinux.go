//go:build unix && !linux

package group

// working: no portable call tells a zombie from a process at work.
func (g *Group) working() bool { return true }

// OutOfReach is not known here.
func (g *Group) OutOfReach() []Member { return nil }
