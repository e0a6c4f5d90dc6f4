package zklock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watchTable hands the events of a conn to those who wait for them. A watch is on the
// server once however many wait for it, and one without waiters is used
// again by the next: the library cannot remove watches, so setting one per wait
// would grow without end on a node that does not change.
type watchTable struct {
	mu         sync.Mutex
	connection int                                // the number of the current one, from 1
	armed      map[watchKey]*watchRequest         // the request was made and the event has not come
	listeners  map[string]map[*listener]watchKind // by path
}

// watchRequest is one request for a watch.
type watchRequest struct {
	on int // the connection on which the server has said that it is set; 0: not yet
}

type watchKey struct {
	path string
	kind watchKind
}

// watchKind says which changes a watch on the server reports; all report the node's deletion.
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

func (w *watchTable) init() {
	w.connection = 1
	w.armed = map[watchKey]*watchRequest{}
	w.listeners = map[string]map[*listener]watchKind{}
}

// deliver wakes the listeners of an event.
func (w *watchTable) deliver(path string, event zk.EventType) {
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

// reconnected wakes those who would wait for ever if an event had been lost. They look for
// themselves, and so do not depend on how the library sets its watches again.
func (w *watchTable) reconnected() {
	w.mu.Lock()
	w.connection++
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
		// A lasting listener wants to know of a deletion alone. The others set theirs anew.
		if key.kind == contents || len(w.listeners[key.path]) == 0 {
			delete(w.armed, key)
		}
	}
	w.mu.Unlock()
	for _, l := range woken {
		l.wake(false)
	}
}

// listen adds a listener. It returns a watchRequest if the watch has still to be set, else nil.
func (w *watchTable) listen(key watchKey, l *listener) *watchRequest {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.listeners[key.path] == nil {
		w.listeners[key.path] = map[*listener]watchKind{}
	}
	w.listeners[key.path][l] = key.kind
	if w.armed[key] != nil {
		return nil
	}
	// Before the request: an event that overtakes the answer must find it set, to clear it.
	// A listener that relies on it meanwhile is woken if the request fails.
	a := &watchRequest{}
	w.armed[key] = a
	return a
}

// confirm notes that the server has set a watch, on this connection or a later one. If the
// event has come already, a is in the map no more, and this changes nothing.
func (w *watchTable) confirm(a *watchRequest, connection int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a != nil {
		a.on = connection
	}
}

// confirmed reports whether the server has said on the current connection that a watch
// is set, and no event has come from it. It is more than to be armed: the request may be on
// its way; and after a reconnection the library sets its watches again in its own time, in
// requests that those of others overtake.
func (w *watchTable) confirmed(key watchKey) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.armed[key]
	return a != nil && a.on == w.connection
}

// current is the number of the connection.
func (w *watchTable) current() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.connection
}

// failed takes back what listen promised to others, unless an event has done so. It wakes none who
// rely on the path's other watch: two clients of it would wake each other for ever where the node
// does not exist.
func (w *watchTable) failed(key watchKey, a *watchRequest) {
	w.mu.Lock()
	var woken []*listener
	if a != nil && w.armed[key] == a {
		delete(w.armed, key)
		for l, kind := range w.listeners[key.path] {
			if kind == key.kind {
				woken = append(woken, l)
				w.removeLocked(key.path, l)
			}
		}
	}
	w.mu.Unlock()
	for _, l := range woken {
		l.wake(false)
	}
}

func (w *watchTable) remove(path string, l *listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removeLocked(path, l)
}

func (w *watchTable) removeLocked(path string, l *listener) {
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
	key := watchKey{path, children}
	a := c.watches.listen(key, l)
	if a == nil {
		return true, nil
	}
	return c.request(ctx, key, a, func() error {
		_, _, _, err := c.zk.ChildrenW(path)
		return err
	})
}

// setConfirmed adds a listener that looks next, and must be told of all that changes after its
// look. A watch that another has still to set is not enough: that request may reach the server
// behind such a change. So it asks too, until the server has said on this connection that the watch
// is set; and no more then, since the library keeps something of each request until the next event.
// (Those who wait behind an entry's node need no such care: its name is used once, so that a late
// request finds that it is gone, which wakes them all.)
func (c *conn) setConfirmed(ctx context.Context, key watchKey, l *listener, request func() error) (exists bool, err error) {
	a := c.watches.listen(key, l)
	if a == nil && c.watches.confirmed(key) { // looked at after l was added: the event of it wakes l
		return true, nil
	}
	return c.request(ctx, key, a, request)
}

func (c *conn) request(ctx context.Context, key watchKey, a *watchRequest, request func() error) (exists bool, err error) {
	_, err = requestWatch(ctx, c, key, a, func() (struct{}, error) { return struct{}{}, request() })
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, explain("watch", err)
}

// watchAll has l woken when a child of a node comes or goes, and returns the children as
// they were when the watch was set. It is for a node among them that may not be read: the
// servers tell nothing of it to a client without the permission (since 3.8.4 and 3.9.2; before
// that a watch by exists was told).
func (c *conn) watchAll(ctx context.Context, parent string, l *listener) ([]string, error) {
	key := watchKey{parent, children}
	a := c.watches.listen(key, l) // if it is armed, since when is unknown
	names, err := requestWatch(ctx, c, key, a, func() ([]string, error) {
		names, _, _, err := c.zk.ChildrenW(parent)
		return names, err
	})
	return names, explain("watch all of "+parent, err)
}

// requestWatch makes the request for a watch and notes what became of it.
func requestWatch[T any](ctx context.Context, c *conn, key watchKey, a *watchRequest, request func() (T, error)) (T, error) {
	if err := c.connected(ctx); err != nil {
		c.watches.failed(key, a)
		var none T
		return none, err
	}
	on := c.watches.current() // if there is another by the time of the answer, this says too little
	return launch(ctx, c, func() (T, error) {
		v, err := request()
		if err != nil {
			c.watches.failed(key, a) // here, since the caller may have gone
		} else {
			c.watches.confirm(a, on)
		}
		return v, err
	})
}
