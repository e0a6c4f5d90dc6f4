//go:build linux || darwin || freebsd

package filelock

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hasplock/hasp/driver"
)

// This file changes queues. The caller is inside a critical section, which any write may
// turn out to be the last of: the process is killed, and the next one reads what is there.
// So each change is one write that does it, the commit, and what is written before means
// nothing without it:
//
//	enter   write the details of a free slot; COMMIT: its record
//	remove  COMMIT: the record, with no units
//
// A dead process's entries need no tidying to be no obstacle: who finds one in the way, and the
// kernel's word that its owner is dead, removes it.

// queue returns the entries of a name, oldest first, as long as nothing else is asked of the file.
func (q *queueFile) queue(k key) []*record {
	q.found = q.found[:0]
	for i := range q.records {
		if r := &q.records[i]; r.units != 0 && r.hash == k.hash {
			q.found = append(q.found, r)
		}
	}
	slices.SortFunc(q.found, func(a, b *record) int { return cmp.Compare(a.seq, b.seq) })
	return q.found
}

// living returns a queue after it has removed the entries of sessions that are known to be dead.
// Another waiter that waits for one of the dead is told of that death by the kernel: no signal is
// needed for them.
func (q *queueFile) living(k key, gone deadSessions) ([]*record, error) {
	if err := q.removeDead(gone); err != nil {
		return nil, err
	}
	return q.queue(k), nil
}

// removeDead removes every entry of dead sessions.
func (q *queueFile) removeDead(gone deadSessions) error {
	if len(gone) == 0 {
		return nil
	}
	for _, r := range slices.Clone(q.records) {
		if r.units != 0 && gone[r.session] {
			if err := q.remove(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// indexOf is where an entry is in its queue, -1 if it is not.
func indexOf(queue []*record, seq uint64, session sessionID) int {
	return slices.IndexFunc(queue, func(r *record) bool { return r.seq == seq && r.session == session })
}

// enter makes an entry, behind all others of its name.
func (q *queueFile) enter(k key, ask *driver.Request, session sessionID, ticket uint64) (record, error) {
	slot := 1 + slices.IndexFunc(q.records, func(r record) bool { return r.units == 0 })
	if slot == 0 {
		slot = len(q.records) + 1
	}
	if slot > maxSlots {
		return record{}, fmt.Errorf("%s is full: %d entries", q.name, maxSlots)
	}
	details := appendDetails(q.page[:0], ask)
	r := record{
		slot: slot, hash: k.hash, session: session, ticket: ticket, sum: checksum(details),
		units: uint32(ask.Units), capacity: uint32(ask.Capacity),
		// The clock carries the sequence on where the file was lost to a power cut or
		// made anew; counting carries it on where the clock was set back. Neither needs
		// an fsync. It decides nothing but this number.
		seq: max(q.head().seq()+1, uint64(max(time.Now().UnixMicro(), 0))),
	}
	if err := q.write(appendValue(details, ask.Value), q.detailsOf(&r)); err != nil {
		return r, err
	}
	return r, q.put(r)
}

// remove takes an entry out. An error says that it is still in the queue.
func (q *queueFile) remove(r record) error {
	r.units = 0
	return q.put(r)
}

// put writes a record, and what the header says of the records. In page 0 that is one write, which
// is the commit. Elsewhere it is the last of two at most:
//
//   - a record above all others means nothing until the header counts it, and nothing again when
//     the header does not count it any more;
//   - between others, the header says before an entry is made that its seq has been used. One that
//     is removed or changed has its seq already.
func (q *queueFile) put(r record) error {
	before := len(q.records)
	if r.slot > before {
		q.records = append(q.records, r)
	}
	q.records[r.slot-1] = r
	high := len(q.records)
	for high > 0 && q.records[high-1].units == 0 {
		high--
	}
	q.records = q.records[:high]
	at := r.slot * recordSize
	q.grow(at + recordSize)
	r.encode(q.pages[at:])
	head, rec := q.head(), q.pages[at:at+recordSize]
	used := head.seq() < r.seq
	head.setSeq(max(head.seq(), r.seq))
	head.setHigh(high)
	head.seal()
	var err error
	if at < pageSize {
		err = q.write(q.pages[:at+recordSize], 0)
	} else {
		if used && high == before {
			err = q.write(head, 0)
		}
		if err == nil && high >= r.slot {
			err = q.write(rec, int64(at))
		}
		if err == nil && high != before {
			err = q.write(head, 0)
		}
	}
	if err == nil {
		q.last.Store(head.seq())
	}
	return err
}

func (q *queueFile) detailsOf(r *record) int64 { return detailsAt + int64(r.slot)*pageSize }

// details reads what was written with an entry, and its value. value is false if that is broken.
func (q *queueFile) details(r *record) (d driver.Request, value bool, err error) {
	if err := q.readAt(q.page, q.detailsOf(r)); err != nil {
		return d, false, err
	}
	d, value, ok := parseDetails(q.page, r.sum)
	if !ok {
		return d, false, &damageError{file: q.name, what: fmt.Sprintf("the details in slot %d are broken", r.slot)}
	}
	d.Units, d.Capacity = int64(r.units), int64(r.capacity)
	return d, value, nil
}

// setValue replaces the published value. It needs no space: the page is there.
func (q *queueFile) setValue(r *record, value []byte) error {
	d, _, err := q.details(r)
	if err != nil {
		return err
	}
	behind := detailsHead + len(d.Name) + len(d.ID) + len(d.Owner)
	return q.write(appendValue(q.page[:0], value), q.detailsOf(r)+int64(behind))
}
