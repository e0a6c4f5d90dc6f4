package zklock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches hands the events of a conn to those who wait for them. A watch stands on the
// server once however many wait for it, and one that nobody waits for any more is used
// again by the next who does: the library cannot remove watches, so setting one per wait
// would grow without end on a node that does not change.
type watches struct {
	mu        sync.Mutex
	armed     map[watchKey]bool                 // the request was made and the event has not come
	listeners map[string]map[*listener]struct{} // by path
}

type watchKey struct {
	path string
	kind watchKind
}

// watchKind is what a watch on the server is told of; all are told of the node's deletion.
type watchKind int

const (
	children watchKind = iota // children come and go
	contents                  // data changes, or the node is created
)

// listener is woken once by the next event of its path, or because one may have been
// missed: it must then look for itself. deleted says that the server said so.
type listener struct {
	wake func(deleted bool)

	// lasting listeners are not woken by a reconnection: the library sets the watches again
	// and the server then tells of a deletion in between. Those who would wait for ever
	// otherwise do not rely on that, and look; those who only want to know early, do.
	lasting bool
}

func (w *watches) init() {
	w.armed = map[watchKey]bool{}
	w.listeners = map[string]map[*listener]struct{}{}
}

// fire tells an event.
func (w *watches) fire(path string, event zk.EventType) {
	w.mu.Lock()
	switch event {
	case zk.EventNodeChildrenChanged:
		delete(w.armed, watchKey{path, children})
	case zk.EventNodeDataChanged, zk.EventNodeCreated:
		delete(w.armed, watchKey{path, contents})
	default:
		delete(w.armed, watchKey{path, children})
		delete(w.armed, watchKey{path, contents})
	}
	woken := w.listeners[path]
	delete(w.listeners, path)
	w.mu.Unlock()
	for l := range woken {
		l.wake(event == zk.EventNodeDeleted)
	}
}

// reconnected wakes those who would wait for ever if an event had been lost.
func (w *watches) reconnected() {
	w.mu.Lock()
	var woken []*listener
	for path, ls := range w.listeners {
		for l := range ls {
			if !l.lasting {
				woken = append(woken, l)
				w.removeLocked(path, l)
			}
		}
	}
	for key := range w.armed {
		if len(w.listeners[key.path]) == 0 {
			delete(w.armed, key)
		}
	}
	w.mu.Unlock()
	for _, l := range woken {
		l.wake(false)
	}
}

// listen adds a listener and reports whether the watch has still to be set.
func (w *watches) listen(key watchKey, l *listener) (arm bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners[key.path] == nil {
		w.listeners[key.path] = map[*listener]struct{}{}
	}
	w.listeners[key.path][l] = struct{}{}
	arm = !w.armed[key]
	// Before the request: an event that overtakes the answer must find it set, to clear it.
	// Whoever relies on it meanwhile is woken if the request fails.
	w.armed[key] = true
	return arm
}

// failed takes back what listen promised to others.
func (w *watches) failed(key watchKey) {
	w.mu.Lock()
	delete(w.armed, key)
	woken := w.listeners[key.path]
	delete(w.listeners, key.path)
	w.mu.Unlock()
	for l := range woken {
		l.wake(false)
	}
}

func (w *watches) remove(path string, l *listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(path, l)
}

func (w *watches) removeLocked(path string, l *listener) {
	if ls := w.listeners[path]; ls != nil {
		delete(ls, l)
		if len(ls) == 0 {
			delete(w.listeners, path)
		}
	}
}

// watch has l woken when the node is deleted or its children change. exists is false,
// and nothing is left behind, if there is no such node.
//
// It asks for the children of a node that has none: getChildren leaves no watch on a node
// that does not exist, as exists would, for ever; and a watch for children is not woken
// when a leader publishes a new value, as one for data would be.
func (c *conn) watch(ctx context.Context, path string, l *listener) (exists bool, err error) {
	return c.set(ctx, watchKey{path, children}, l, func() error {
		_, _, _, err := c.zk.ChildrenW(path)
		if err == zk.ErrNoAuth {
			// Reading needs a permission that another library's node may not give to us, to see
			// that it exists needs none.
			var found bool
			if found, _, _, err = c.zk.ExistsW(path); err == nil && !found {
				err = zk.ErrNoNode
			}
		}
		return err
	})
}

// set adds the listener and makes the request unless the watch stands.
func (c *conn) set(ctx context.Context, key watchKey, l *listener, request func() error) (exists bool, err error) {
	if !c.watches.listen(key, l) {
		return true, nil
	}
	if err := c.connected(ctx); err != nil {
		c.watches.failed(key)
		return false, err
	}
	_, err = launch(ctx, c, func() (struct{}, error) {
		err := request()
		if err != nil {
			c.watches.failed(key) // here, since the caller may have gone
		}
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, explain("watch", err)
}
