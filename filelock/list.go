//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"slices"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// sight is an entry as read in a critical section, before it is known whether it lives.
type sight struct {
	entry   driver.Entry
	session sessionID
}

// List returns the entries of a name whose owners live.
func (b *backend) List(ctx context.Context, name string, limit int) ([]driver.Entry, error) {
	s, err := b.use(ctx)
	if err != nil {
		return nil, err
	}
	defer s.leave()
	k := newKey(name)
	q := s.file(k)
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	tail, _, err := q.find(k)
	var seen []sight
	if err == nil {
		seen, err = q.read(tail)
	}
	q.unlock()
	if err != nil {
		return nil, err
	}
	list, err := s.entries(seen)
	return driver.First(list, limit), err
}

// entries leaves out the dead, whose entries are only still to be removed.
func (s *store) entries(seen []sight) ([]driver.Entry, error) {
	ids := make([]sessionID, len(seen))
	for i := range seen {
		ids[i] = seen[i].session
	}
	gone, err := s.living(ids)
	if err != nil {
		return nil, err
	}
	list := make([]driver.Entry, 0, len(seen))
	for _, e := range seen {
		if !gone[e.session] {
			list = append(list, e.entry)
		}
	}
	return list, nil
}

// read returns a queue, oldest first.
func (q *queueFile) read(tail uint32) (seen []sight, err error) {
	var bad error
	err = q.walk(tail, func(slot uint32, r *record) bool {
		if r.state == left {
			return true
		}
		e := driver.Entry{Seq: r.seq, Session: r.session.String()}
		if e.Request, bad = q.details(slot, r); bad == nil {
			// One that died while publishing has left a broken value; and is not listed.
			e.Value, bad = q.value(slot, r)
			if isDamage(bad) && q.store.hasEnded(r.session) {
				bad = nil
			}
		}
		seen = append(seen, sight{e, r.session})
		return bad == nil
	})
	if err == nil {
		err = bad
	}
	slices.Reverse(seen)
	return seen, err
}

// Names reads one queue file after the other, and each name in it.
func (b *backend) Names(ctx context.Context, prefix string, yield func(name string) bool) error {
	s, err := b.use(ctx)
	if err != nil {
		return err
	}
	defer s.leave()
	for _, q := range s.files {
		names, err := q.names(ctx)
		if err != nil {
			return err
		}
		for _, name := range names {
			if strings.HasPrefix(name, prefix) && !yield(name) {
				return nil
			}
		}
	}
	return ctx.Err()
}

// names returns those that have a living entry.
func (q *queueFile) names(ctx context.Context) (names []string, err error) {
	byName := map[string][]sessionID{}
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	err = q.tails(func(tail uint32, r *record) error {
		d, err := q.details(tail, r)
		if err == nil {
			byName[d.Name], err = q.sessions(tail)
		}
		return err
	})
	q.unlock()
	for name, ids := range byName {
		gone, unknown := q.store.living(ids)
		if unknown != nil {
			err = unknown
		}
		if slices.ContainsFunc(ids, func(id sessionID) bool { return !gone[id] }) {
			names = append(names, name)
		}
	}
	return names, err
}

// tails visits the newest entry of every name in the file.
func (q *queueFile) tails(visit func(tail uint32, r *record) error) error {
	for i := range buckets {
		for tail, steps := q.head.bucket(i), 0; tail != 0; steps++ {
			r, err := q.record(tail)
			if err == nil && steps > maxSlots {
				err = &damageError{q.name, "a bucket runs in a circle"}
			}
			if err == nil {
				err = visit(tail, &r)
			}
			if err != nil {
				return err
			}
			tail = r.chain
		}
	}
	return nil
}
