package top

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/hasplock/hasp"
)

// Watch looks at the names that begin with a prefix. It is for one goroutine at a time.
type Watch struct {
	Client *hasp.Client
	Prefix string
	Bound  time.Duration // of one request

	seen holderChanges
}

// Look is the state of the names, as hasp top --json prints it.
type Look struct {
	Time  time.Time `json:"time"`
	Store string    `json:"store"`
	Names int       `json:"names"`
	Held  int       `json:"held"`
	Waits int       `json:"waiting"`
	Locks []Lock    `json:"locks"` // the longest queue first
}

// Lock is a name's queue.
type Lock struct {
	hasp.Queue
	Changes float64 `json:"changes_per_second"` // of holder, as far as they were seen
}

// Look asks for every queue once, so the answers are of different moments.
func (w *Watch) Look(ctx context.Context) (Look, error) {
	if w.seen == nil {
		w.seen = holderChanges{}
	}
	l := Look{Time: time.Now(), Store: w.Client.Backend().String(), Locks: []Lock{}}
	names, err := w.names(ctx)
	if err != nil {
		return l, err
	}
	for _, name := range names {
		q, err := w.inspect(ctx, name)
		switch {
		case err != nil:
			return l, err
		case len(q.Holders)+len(q.Waiters) == 0:
			continue // it has been released since
		}
		l.Names++
		l.Held += len(q.Holders)
		l.Waits += len(q.Waiters)
		l.Locks = append(l.Locks, Lock{q, w.seen.note(q, l.Time)})
	}
	w.seen.forget(l.Time)
	byQueue.sort(l.Locks, l.Time)
	return l, nil
}

// names and inspect bound each request, and not the look: a store with thousands of names is not out of
// reach because a look takes long.
func (w *Watch) names(ctx context.Context) (names []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, w.Bound)
	defer cancel()
	for name, err := range w.Client.Names(ctx, w.Prefix) {
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

func (w *Watch) inspect(ctx context.Context, name string) (hasp.Queue, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Bound)
	defer cancel()
	return w.Client.Inspect(ctx, name)
}

// order sorts the names.
type order int

const (
	byQueue order = iota // the number of waiters
	byWait               // the longest wait
	byHold               // the longest hold
	byName
)

func (o order) String() string {
	return [...]string{"queue", "wait", "hold", "name"}[o]
}

// sort puts the longest first, and names in their order where that is the same.
func (o order) sort(locks []Lock, now time.Time) {
	slices.SortFunc(locks, func(a, b Lock) int {
		switch o {
		case byQueue:
			return cmp.Or(cmp.Compare(len(b.Waiters), len(a.Waiters)), cmp.Compare(b.Changes, a.Changes), cmp.Compare(a.Name, b.Name))
		case byWait:
			return cmp.Or(cmp.Compare(longest(b.Waiters, now), longest(a.Waiters, now)), cmp.Compare(a.Name, b.Name))
		case byHold:
			return cmp.Or(cmp.Compare(longest(b.Holders, now), longest(a.Holders, now)), cmp.Compare(a.Name, b.Name))
		}
		return cmp.Compare(a.Name, b.Name)
	})
}

// longest is the age of the oldest entry, by its owner's clock; 0 if none has said it.
func longest(entries []hasp.Entry, now time.Time) (age time.Duration) {
	for _, e := range entries {
		if !e.Since.IsZero() {
			age = max(age, now.Sub(e.Since))
		}
	}
	return age
}
