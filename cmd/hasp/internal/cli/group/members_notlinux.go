//go:build unix && !linux

package group

// working: no portable call tells a zombie from a running process.
func (g *Group) working() bool { return true }

// OutOfReach is not known here.
func (g *Group) OutOfReach() []Member { return nil }

// Left is not known here.
func (g *Group) Left() (Member, bool) { return Member{}, false }
