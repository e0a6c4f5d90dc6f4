package hasp

import (
	"slices"

	"github.com/hasplock/hasp/driver"
)

// waitGraph has one node for each entry that waits.
type waitGraph struct {
	queues [][]driver.Entry
	nodes  []*waitNode
	byID   map[string]*waitNode   // the waiters
	bySess map[string][]*waitNode // the waiters of a session
	holds  map[string][]*waitNode // the waiters that say they hold an entry, by its id
	stuck  map[bool]stuckSet      // the certain ones, and those that may be
}

type waitNode struct {
	name     string
	entry    Entry
	blockers []Entry
	edges    []waitEdge
}

type waitEdge struct {
	to      *waitNode
	on      Entry // the blocker behind it
	certain bool
}

func (g *waitGraph) add(entries []driver.Entry, public func(driver.Entry) Entry) {
	g.queues = append(g.queues, entries)
	for i, e := range entries {
		held, blockers := driver.Decide(entries[:i], e.Request)
		if held {
			continue
		}
		n := &waitNode{name: e.Name, entry: public(e)}
		for _, b := range blockers {
			n.blockers = append(n.blockers, public(b))
		}
		g.nodes = append(g.nodes, n)
	}
}

// connect draws an edge from each waiter to the waiters that its blockers depend on: a
// blocker that waits in front, itself; one that holds, those who wait while they hold it.
func (g *waitGraph) connect() {
	g.byID, g.bySess, g.holds = map[string]*waitNode{}, map[string][]*waitNode{}, map[string][]*waitNode{}
	for _, n := range g.nodes {
		g.byID[n.entry.ID] = n
		holds := n.entry.Holds
		if n.entry.Owner.Via != "" {
			holds = nil // any client of the server can say that it holds another's lock
		}
		for _, id := range holds {
			g.holds[id] = append(g.holds[id], n)
		}
		if s := n.entry.Session; s != "" && len(holds) == 0 {
			g.bySess[s] = append(g.bySess[s], n)
		}
	}
	for _, n := range g.nodes {
		for _, b := range n.blockers {
			if w := g.byID[b.ID]; w != nil {
				n.edges = append(n.edges, waitEdge{w, b, true})
				continue
			}
			for _, w := range g.holds[b.ID] {
				n.edges = append(n.edges, waitEdge{w, b, true})
			}
			if b.Session != n.entry.Session { // a process whose goroutines share a lock is no cycle
				for _, w := range g.bySess[b.Session] {
					n.edges = append(n.edges, waitEdge{w, b, false})
				}
			}
		}
	}
	g.stuck = map[bool]stuckSet{true: g.findStuck(true), false: g.findStuck(false)}
}

type stuckSet map[*waitNode]bool

// findStuck finds the waiters that stay denied although all leave who can. That is more than to
// stand in a cycle: of several holders of a semaphore each is in the way of a waiter, and one that
// leaves is enough. So all begin as stuck. A waiter is taken off if it would hold beside the
// entries of stuck waiters alone, until no more can be taken off. The entries of a waiter are
// itself and those that it says it holds; or, if it need not be certain, all that its session
// holds. One that waits for any of several locks is never certain to be stuck: another of its
// queues may serve it.
func (g *waitGraph) findStuck(certain bool) stuckSet {
	stuck := make(stuckSet, len(g.nodes))
	for _, n := range g.nodes {
		if !certain || !n.entry.AnyOf {
			stuck[n] = true
		}
	}
	isStuck := func(n *waitNode) bool { return stuck[n] }
	for again := true; again; {
		again = false
		for _, queue := range g.queues {
			var stay []driver.Entry
			for _, e := range queue {
				if w := g.byID[e.ID]; w != nil {
					if !stuck[w] {
						continue
					}
					if held, _ := driver.Decide(stay, e.Request); held {
						delete(stuck, w)
						again = true
						continue
					}
				} else if !slices.ContainsFunc(g.holds[e.ID], isStuck) && (certain || !slices.ContainsFunc(g.bySess[e.Session], isStuck)) {
					continue
				}
				stay = append(stay, e)
			}
		}
	}
	return stuck
}

// cycles returns disjoint cycles, the certain ones first: shortest first from each node.
func (g *waitGraph) cycles() []Deadlock {
	var found []Deadlock
	in := map[*waitNode]bool{}
	for _, certain := range []bool{true, false} {
		for _, n := range g.nodes {
			if in[n] {
				continue
			}
			path := g.cycle(n, certain)
			if path == nil || slices.ContainsFunc(path, func(e waitEdge) bool { return in[e.to] }) {
				continue
			}
			d := Deadlock{Certain: true}
			at := n
			for _, e := range path {
				d.Waits = append(d.Waits, DeadlockEdge{at.name, at.entry, e.on})
				d.Certain = d.Certain && g.counts(e, true)
				at = e.to
				in[at] = true
			}
			found = append(found, d)
		}
	}
	return found
}

// counts reports whether an edge can be one of a deadlock.
func (g *waitGraph) counts(e waitEdge, certain bool) bool {
	return (e.certain || !certain) && g.stuck[certain][e.to]
}

// cycle is the shortest way from n back to itself, found breadth first; nil if none.
func (g *waitGraph) cycle(n *waitNode, certain bool) []waitEdge {
	type step struct {
		edge waitEdge
		from *step
	}
	seen := map[*waitNode]bool{}
	level := []*step{{edge: waitEdge{to: n}}}
	for len(level) > 0 {
		var next []*step
		for _, s := range level {
			for _, e := range s.edge.to.edges {
				if !g.counts(e, certain) || seen[e.to] {
					continue
				}
				seen[e.to] = true
				here := &step{e, s}
				if e.to != n {
					next = append(next, here)
					continue
				}
				var path []waitEdge
				for ; here.from != nil; here = here.from {
					path = append(path, here.edge)
				}
				slices.Reverse(path)
				return path
			}
		}
		level = next
	}
	return nil
}
