//go:build linux || darwin || freebsd

package filelock

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// Evict removes an entry. Its owner and those it concerns are signalled before that,
// while they cannot see the queue: were we to die in between, they would not be told,
// because they do not watch us.
//
// The note, if there is one, is all written before the removal, becomes the name's by a
// rename after it, and both happen in one critical section, for which every process must wait
// that looks at the queue. If we are killed between the two, the entry has gone and an older
// note stays; the other way round the killed process would leave a note of what was never done. If
// there is no space for it, say, or no file, the eviction is done without.
func (b *backend) Evict(ctx context.Context, name, id, note string) error {
	if len(note) > maxNote {
		return fmt.Errorf("%w: a note may have %d bytes", driver.ErrInvalid, maxNote)
	}
	s, err := b.use(ctx)
	if err != nil {
		return err
	}
	defer s.leave()
	if err := s.mayWrite(); err != nil {
		return err
	}
	k := newKey(name)
	q := s.file(k)
	if err := q.lock(ctx); err != nil {
		return err
	}
	defer q.unlock()
	queue := q.queue(k)
	i, err := q.byID(queue, id)
	if err != nil {
		return err
	}
	if i < 0 {
		return fmt.Errorf("%w: no entry %s", driver.ErrGone, id)
	}
	unkept := s.access.writeNote(s.root, k, note)
	for _, p := range append(affectedBy(queue, i), wakeTarget{session: queue[i].session, ticket: queue[i].ticket}) {
		s.notifier.notify(p)
	}
	err = q.remove(*queue[i])
	if err == nil && unkept == nil {
		_ = s.access.keepNote(s.root, k)
	}
	return err
}

// byID looks for an entry in a queue, and returns -1 if there is none.
func (q *queueFile) byID(queue []*record, id string) (int, error) {
	for i := range queue {
		if d, _, err := q.details(queue[i]); err != nil || d.ID == id {
			return i, err
		}
	}
	return -1, nil
}

// LastEviction reads the note. It needs no critical section: a note is replaced as a whole.
func (b *backend) LastEviction(ctx context.Context, name string) (string, error) {
	s, err := b.use(ctx)
	if err != nil {
		return "", err
	}
	defer s.leave()
	note, err := s.access.readNote(s.root, newKey(name))
	if err != nil {
		return "", fmt.Errorf("read a note in %s/%s: %w", s.path, notesDir, err)
	}
	return note, nil
}

var _ driver.Evicter = (*backend)(nil)
