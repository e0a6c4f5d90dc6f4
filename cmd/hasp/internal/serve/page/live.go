package page

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/queues"
)

const (
	every      = 400 * time.Millisecond // between two looks at the names
	readsALook = 400                    // queues of known names that each look reads again; new names come first, and all of them
	readBound  = 5 * time.Second        // for an answer of the store
)

// live reads the store for all pages, as long as there is one. A look asks for the names, so that
// locks which come and go are seen at once, and reads the queues of new names, and those of known
// ones in turn: with thousands of names a change of holder is seen a few seconds later. A queue
// that a page shows in full is read for that page.
type live struct {
	client *hasp.Client
	over   context.Context // ends with the server

	mu      sync.Mutex
	rows    map[string]*row
	read    map[string]time.Time // when each was read
	trouble string               // why the store cannot be read; "" if it can
	ready   bool                 // it was read at least once
	pages   map[*subscriber]bool
	stop    context.CancelFunc // of the loop, if it runs
}

// subscriber is an open page. What has changed since the last event stands until it is sent: one
// that reads slowly gets fewer events, and not later ones.
type subscriber struct {
	changed map[string]bool // names; guarded by live's mu
	health  bool            // trouble has changed; the same
	wake    chan struct{}   // has one element if there is something
}

func newLive(client *hasp.Client, over context.Context) *live {
	return &live{client: client, over: over, rows: map[string]*row{}, read: map[string]time.Time{}, pages: map[*subscriber]bool{}}
}

// subscribe adds a page; the first one begins the looks. The page is told of all rows.
func (l *live) subscribe() *subscriber {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &subscriber{changed: map[string]bool{}, wake: make(chan struct{}, 1)}
	l.pages[s] = true
	if l.stop == nil {
		var ctx context.Context
		ctx, l.stop = context.WithCancel(l.over)
		l.ready = false
		go l.run(ctx) // ends with the last page, or with the server
	}
	return s
}

// unsubscribe removes a page. After the last one the store is left alone.
func (l *live) unsubscribe(s *subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pages, s)
	if len(l.pages) == 0 {
		l.stop()
		l.stop = nil
		clear(l.rows)
		clear(l.read)
		l.trouble = ""
	}
}

func (l *live) run(ctx context.Context) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := l.look(ctx); ctx.Err() == nil {
			l.note(err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// note tells all pages whether the store can be read.
func (l *live) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	first := err == nil && !l.ready
	l.ready = l.ready || err == nil
	if text == l.trouble && !first {
		return
	}
	l.trouble = text
	for s := range l.pages {
		s.health = true
		s.signal()
	}
}

func (s *subscriber) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// look asks for the names, and reads some queues.
func (l *live) look(ctx context.Context) error {
	names, err := queues.Names(ctx, l.client, "", readBound)
	if err != nil {
		return err
	}
	return l.readQueues(ctx, l.due(ctx, names))
}

func (l *live) readQueues(ctx context.Context, names []string) error {
	return queues.Read(ctx, l.client, names, readBound, func(_ int, q hasp.Queue) {
		var r *row
		if len(q.Holders)+len(q.Waiters) > 0 {
			r = newRow(q, time.Now())
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if ctx.Err() == nil {
			l.setLocked(q.Name, r)
		}
	})
}

// due drops the names that are gone, and says which queues to read: all new ones, and of the others
// those that were read longest ago.
func (l *live) due(ctx context.Context, names []string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return nil // the rows may be those of a later loop
	}
	for name := range l.rows {
		if _, there := slices.BinarySearch(names, name); !there {
			l.setLocked(name, nil)
		}
	}
	var fresh, known []string
	for _, name := range names {
		if l.rows[name] == nil {
			fresh = append(fresh, name)
		} else {
			known = append(known, name)
		}
	}
	slices.SortFunc(known, func(a, b string) int { return l.read[a].Compare(l.read[b]) })
	return append(fresh, known[:min(len(known), readsALook)]...)
}

// setLocked notes what a name's row is by now, nil if it has none.
func (l *live) setLocked(name string, r *row) {
	old := l.rows[name]
	if r == nil {
		delete(l.rows, name)
		delete(l.read, name)
	} else {
		l.rows[name] = r
		l.read[name] = time.Now()
	}
	if old == nil && r == nil || r != nil && r.same(old) {
		return
	}
	for s := range l.pages {
		s.changed[name] = true
		s.signal()
	}
}

// take returns what a page has to be told since the last time.
func (l *live) take(s *subscriber) (changed map[string]*row, trouble *string, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	changed = map[string]*row{}
	for name := range s.changed {
		changed[name] = l.rows[name]
	}
	clear(s.changed)
	if s.health {
		s.health = false
		trouble = new(string)
		*trouble = l.trouble
	}
	return changed, trouble, l.ready
}

// all returns the rows of this moment. What has changed until now is among them.
func (l *live) all(s *subscriber) (rows map[string]*row, trouble string, ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(s.changed)
	s.health = false
	return maps.Clone(l.rows), l.trouble, l.ready
}
