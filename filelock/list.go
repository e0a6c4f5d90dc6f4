//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"
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
	seen, err := q.read(q.queue(k), limit)
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
// and perhaps some of the dead before them. Of those beyond the limit nothing is read that their
// owners have written, nor whether they live.
func (q *queueFile) read(queue []*record, limit int) (seen []listedEntry, err error) {
	living := 0
	for _, r := range queue {
		d, value, err := q.details(r)
		// One that died while publishing has left a broken value, and is not listed.
		if err == nil && !value && !q.store.hasEnded(r.session) {
			err = &damageError{file: q.name, what: fmt.Sprintf("the value in slot %d is broken", r.slot)}
		}
		if err != nil {
			return nil, err
		}
		seen = append(seen, listedEntry{driver.Entry{Request: d, Seq: r.seq, Session: r.session.String()}, r.session})
		if limit == 0 {
			continue // whether it lives is found out outside of the critical section
		}
		if !q.store.hasEnded(r.session) {
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
	if err := q.lock(ctx); err != nil {
		return nil, err
	}
	byName := map[string][]sessionID{}
	nameOf := map[nameHash]string{}
	for _, r := range q.records {
		if r.units == 0 {
			continue
		}
		name, known := nameOf[r.hash]
		if !known {
			var d driver.Request
			if d, _, err = q.details(&r); err != nil {
				break
			}
			name = d.Name
			nameOf[r.hash] = name
		}
		byName[name] = append(byName[name], r.session)
	}
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
