package memstore

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hasplock/hasp/driver"
)

// Store holds queues. Backends of one Store see each other's locks. Safe for use by many
// goroutines.
type Store struct {
	label string

	mu       sync.Mutex
	seq      uint64 // of the last entry under any name, so that it grows for each
	sessions uint64
	queues   map[string]*queue
	watchers map[string][]*watcher
	open     map[*session]struct{}
	faults   faults

	evictions map[string]string // the last note, by name
}

// New returns an empty store, which its backends call by label.
func New(label string) *Store {
	return &Store{
		label: label, queues: map[string]*queue{}, watchers: map[string][]*watcher{},
		open: map[*session]struct{}{}, evictions: map[string]string{},
	}
}

// Backend returns a new connection to the store.
func (s *Store) Backend() driver.Backend { return &backend{store: s} }

// queue has the entries of a name, by Seq. It exists iff it is not empty. Since the units
// of everybody ahead count, those who hold are always the first few.
type queue struct {
	capacity int64
	entries  []*entry
	holding  int   // that many of the first entries hold
	used     int64 // units of those
	first    [1]*entry
}

// entry is somebody's place. notice exists if it had to wait, and is closed when it begins
// to hold or leaves.
type entry struct {
	driver.Entry
	held   bool
	gone   bool
	notice chan struct{}
	of     *session
}

// evicted tells the owner of an entry that was removed.
func (e *entry) evicted() {
	e.of.opts.Gone(e.ID, fmt.Errorf("%w: evicted", driver.ErrGone))
}

func (e *entry) ring() {
	if e.notice != nil {
		close(e.notice)
	}
}

// find returns the position of an entry in its queue.
func (q *queue) find(seq uint64) int {
	i, _ := slices.BinarySearchFunc(q.entries, seq, func(e *entry, seq uint64) int {
		return int(int64(e.Seq - seq)) // differences of a counter are small
	})
	return i
}

// admit lets those in front hold who fit. It is driver.Decide kept as a running sum.
func (q *queue) admit() {
	for q.holding < len(q.entries) {
		e := q.entries[q.holding]
		if q.used+e.Units > q.capacity {
			return
		}
		q.used += e.Units
		q.holding++
		e.held = true
		e.ring()
	}
}

// enter appends an entry unless it may not be: another capacity (an error), or NoWait and
// no room (false).
func (s *Store) enter(e *entry, r driver.Request, of *session) (bool, error) {
	q := s.queues[r.Name]
	if q == nil {
		q = &queue{capacity: r.Capacity}
		q.entries = q.first[:0]
	}
	if q.capacity != r.Capacity {
		return false, &driver.MismatchError{Name: r.Name, Want: r.Capacity, Found: q.capacity}
	}
	if r.NoWait && (q.holding < len(q.entries) || q.used+r.Units > q.capacity) {
		return false, nil
	}
	s.seq++
	r.Value = slices.Clone(r.Value)
	e.Entry, e.of = driver.Entry{Request: r, Seq: s.seq, Session: of.id}, of
	of.entries[r.ID] = e
	q.entries = append(q.entries, e)
	s.queues[r.Name] = q
	if q.admit(); !e.held {
		e.notice = make(chan struct{})
	}
	s.changed(r.Name)
	return true, nil
}

// remove takes an entry out and lets the next hold.
func (s *Store) remove(e *entry) {
	e.gone = true
	delete(e.of.entries, e.ID)
	if !e.held {
		e.ring()
	}
	if q := s.queues[e.Name]; q != nil { // else Forget has dropped it as a whole
		q.drop(e)
		if len(q.entries) == 0 {
			delete(s.queues, e.Name)
		}
		q.admit()
	}
	s.changed(e.Name)
}

func (q *queue) drop(e *entry) {
	i := q.find(e.Seq)
	q.entries = slices.Delete(q.entries, i, i+1)
	if e.held {
		q.holding--
		q.used -= e.Units
	}
}

// list copies the first limit entries of a queue, or all if limit is 0.
func (s *Store) list(name string, limit int) []driver.Entry {
	q := s.queues[name]
	if q == nil {
		return nil
	}
	first := q.entries
	if limit > 0 {
		first = first[:min(limit, len(first))]
	}
	list := make([]driver.Entry, len(first))
	for i, e := range first {
		list[i] = e.Entry
		list[i].Value = slices.Clone(e.Value)
	}
	return list
}

func (s *Store) names(prefix string) []string {
	var names []string
	for name := range s.queues {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// watcher is one Watch call. signal holds one pending change.
type watcher struct{ signal chan struct{} }

func (s *Store) changed(name string) {
	for _, w := range s.watchers[name] {
		select {
		case w.signal <- struct{}{}:
		default:
		}
	}
}
