//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"slices"
	"strings"

	"github.com/hasplock/hasp/driver"
)

// listedEntry is an entry as read in a critical section, before it is known whether it lives.
type listedEntry struct {
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
	var seen []listedEntry
	if err == nil {
		seen, err = q.read(tail, limit)
	}
	q.unlock()
	if err != nil {
		return nil, err
	}
	list, err := s.entries(seen)
	return driver.First(list, limit), err
}

// entries leaves out the dead, whose entries are only still to be removed.
func (s *store) entries(seen []listedEntry) ([]driver.Entry, error) {
	ids := make([]sessionID, len(seen))
	for i := range seen {
		ids[i] = seen[i].session
	}
	gone, err := s.endedSessions(ids)
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

// read returns a queue, oldest first: all of it, or with a limit that many of those who live
// and perhaps some of the dead before them. The links lead from the newest to the oldest, so
// that all records are passed; of those beyond the limit nothing else is read, neither what
// their owners have written nor whether they live.
func (q *queueFile) read(tail uint32, limit int) (seen []listedEntry, err error) {
	type located struct {
		slot uint32
		rec  record
	}
	var queue []located
	if err := q.walk(tail, func(slot uint32, r *record) bool {
		if r.state == queued {
			queue = append(queue, located{slot, *r})
		}
		return true
	}); err != nil {
		return nil, err
	}
	living := 0
	for _, p := range slices.Backward(queue) {
		e := driver.Entry{Seq: p.rec.seq, Session: p.rec.session.String()}
		if e.Request, err = q.details(p.slot, &p.rec); err == nil {
			// One that died while publishing has left a broken value; and is not listed.
			e.Value, err = q.value(p.slot, &p.rec)
			if isDamage(err) && q.store.hasEnded(p.rec.session) {
				err = nil
			}
		}
		if err != nil {
			return nil, err
		}
		seen = append(seen, listedEntry{e, p.rec.session})
		if limit == 0 {
			continue // whether it lives is found out outside of the critical section
		}
		if !q.store.hasEnded(p.rec.session) {
			living++
		}
		if living == limit {
			break
		}
	}
	return seen, nil
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
		gone, unknown := q.store.endedSessions(ids)
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
				err = &damageError{file: q.name, what: "a bucket has a cycle"}
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
