// Package watching implements driver.Watcher by one connection for all names that are watched: a
// program may follow a thousand names, and a server's connections are few.
//
// A driver has one Group, whose Watch is the driver's. Its Run listens on the connection, in a loop:
// it takes the Names, listens for those that are new, asks for those that are due and notes each as
// Asked, and waits for messages, calling Changed, until the context of Pause ends.
package watching

import (
	"context"
	"sync"
	"time"
)

// Group is the names that are watched. A driver sets Run before the first use, and asks the store
// for them in there.
type Group struct {
	// Run watches what is in the group until ctx ends, which it does when nothing is watched any
	// more. What it returns before is told to all that watch.
	Run func(ctx context.Context) error

	mu        sync.Mutex
	names     map[string]*watched
	stop      context.CancelFunc // of the Run under way
	interrupt context.CancelFunc // of its pause; nil while it has none
	woken     bool               // a name has come or gone since its last look
}

// watched is one name.
type watched struct {
	by     map[*watcher]struct{}
	stands bool      // it was asked for: changes are noticed from here on
	due    time.Time // when it is to be asked for again
}

type watcher struct {
	changed func()
	failed  chan error // one slot
}

// Watch is driver.Watcher's.
func (g *Group) Watch(ctx context.Context, name string, changed func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &watcher{changed, make(chan error, 1)}
	g.add(name, w)
	defer g.remove(name, w)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-w.failed:
		return err
	}
}

func (g *Group) add(name string, w *watcher) {
	g.mu.Lock()
	n := g.names[name]
	if n == nil {
		if g.names == nil {
			g.names = map[string]*watched{}
		}
		n = &watched{by: map[*watcher]struct{}{}}
		g.names[name] = n
		g.wakeLocked()
	}
	n.by[w] = struct{}{}
	stands := n.stands
	if g.stop == nil {
		var ctx context.Context
		ctx, g.stop = context.WithCancel(context.Background())
		go g.run(ctx)
	}
	g.mu.Unlock()
	if stands {
		w.changed()
	}
}

func (g *Group) remove(name string, w *watcher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.names[name]
	if n == nil {
		return
	}
	if delete(n.by, w); len(n.by) > 0 {
		return
	}
	delete(g.names, name)
	g.wakeLocked()
	if len(g.names) == 0 {
		g.stop()
		g.stop = nil
	}
}

// run runs, and tells all of its error. A group that was left and is used again has another run by
// then, which this one must not touch.
func (g *Group) run(ctx context.Context) {
	err := g.Run(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	for _, n := range g.names {
		for w := range n.by {
			w.failed <- err
		}
	}
	clear(g.names)
	g.stop()
	g.stop = nil
}

func (g *Group) wakeLocked() {
	g.woken = true
	if g.interrupt != nil {
		g.interrupt()
	}
}

// Names are those that are watched; all of them, and those that are due.
func (g *Group) Names() (all map[string]bool, due []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.woken = false
	all = make(map[string]bool, len(g.names))
	now := time.Now()
	for name, n := range g.names {
		all[name] = true
		if !n.due.After(now) {
			due = append(due, name)
		}
	}
	return all, due
}

// Pause returns a context that ends when a name is due, or has come or gone since Names was called,
// or ctx ends.
func (g *Group) Pause(ctx context.Context) (context.Context, context.CancelFunc) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := time.Now().Add(time.Hour)
	for _, n := range g.names {
		if n.due.Before(next) {
			next = n.due
		}
	}
	asleep, cancel := context.WithDeadline(ctx, next)
	if g.woken {
		cancel()
	}
	g.interrupt = cancel
	return asleep, cancel
}

// Asked notes that a name was asked for, and when it is to be asked for again.
func (g *Group) Asked(name string, again time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n := g.names[name]; n != nil {
		n.stands, n.due = true, time.Now().Add(again)
	}
}

// Changed tells those that watch a name.
func (g *Group) Changed(name string) {
	g.mu.Lock()
	var notify []*watcher
	if n := g.names[name]; n != nil {
		for w := range n.by {
			notify = append(notify, w)
		}
	}
	g.mu.Unlock()
	for _, w := range notify {
		w.changed()
	}
}
