//go:build linux || darwin || freebsd

package filelock

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// This file changes queues. The caller is inside a critical section, which any write may
// turn out to be the last of: the process is killed, and the next one reads what is there.
// So each change is one write that does it, the commit; what is written before means
// nothing without it, and what is written after can be found out from the rest.
//
//	enter   write the slot (still free); neighbour.next (not believed: the neighbour is
//	        the newest); header with seq and slot taken; COMMIT: the pointer to the newest
//	        entry, which is in the header too unless two names share a bucket
//	remove  COMMIT: state left; then unlink it, and put the slot on the free list
//
// A dead process's entries need no tidying: they no longer count, in any state.
// What can remain of one that died inside is a record that has left but is linked,
// which the next to pass unlinks, and a slot in no list, which the file gets back when it
// is empty. Neither admits or blocks any entry.

// tailPointer is where the pointer to the newest entry of a name is: in the chain field of
// another name's newest entry, or with slot 0 in the header's bucket.
type tailPointer struct {
	bucket int
	slot   uint32
}

// find returns the newest entry of a name, or slot 0, after taking away what has left. One that
// only looks cannot write: it gets what has left and is still linked (a process died before it
// unlinked that), and passes over it when it walks on.
func (q *queueFile) find(k key) (slot uint32, r record, err error) {
	for next, steps := q.head.bucket(bucketOf(k.hash)), 0; next != 0; steps++ {
		slot := next
		if r, err = q.record(slot); err != nil {
			return 0, r, err
		}
		if steps > maxSlots {
			return 0, r, &damageError{file: q.name, what: "a bucket has a cycle"}
		}
		next = r.chain
		if r.hash != k.hash {
			continue
		}
		same, err := q.isNamed(slot, &r, k.name)
		if err != nil {
			return 0, r, err
		}
		if !same {
			continue
		}
		if r.state == queued || q.store.access.look {
			return slot, r, nil
		}
		if err := q.mark(slot, &r); err != nil {
			return 0, r, err
		}
		if err := q.unlink(slot, r, 0); err != nil {
			return 0, r, err
		}
		next, steps = q.head.bucket(bucketOf(k.hash)), 0
	}
	return 0, record{}, nil
}

// pointerTo finds what points to the newest entry of a name.
func (q *queueFile) pointerTo(hash uint64, slot uint32) (tailPointer, error) {
	at := tailPointer{bucket: bucketOf(hash)}
	next := q.head.bucket(at.bucket)
	for steps := 0; next != 0 && next != slot && steps <= maxSlots; steps++ {
		r, err := q.record(next)
		if err != nil {
			return at, err
		}
		at.slot, next = next, r.chain
	}
	if next != slot || slot == 0 {
		return at, &damageError{file: q.name, what: fmt.Sprintf("nothing leads to slot %d", slot)}
	}
	return at, nil
}

// enter puts an entry behind tail, the newest of the name, or makes it the first (tail 0).
func (q *queueFile) enter(k key, tail uint32, ask *driver.Request, session sessionID, ticket uint64) (uint32, record, error) {
	r := record{
		state: queued, prev: tail, hash: k.hash, session: session, ticket: ticket,
		units: uint32(ask.Units), capacity: uint32(ask.Capacity),
		// The clock carries the sequence on where the file was lost to a power cut or
		// made anew; counting carries it on where the clock was set back. Neither needs
		// an fsync. It decides nothing but this number.
		seq: max(q.head.seq()+1, uint64(max(time.Now().UnixMicro(), 0))),
	}
	at := tailPointer{bucket: bucketOf(k.hash)}
	r.chain = q.head.bucket(at.bucket) // a first entry goes in front of its bucket
	if tail != 0 {
		t, err := q.record(tail)
		if err != nil {
			return 0, r, err
		}
		if at, err = q.pointerTo(k.hash, tail); err != nil {
			return 0, r, err
		}
		r.chain = t.chain
	}
	slot, err := q.take()
	if err == nil {
		// The newest entry's next is not believed. Keeping the free list's link there
		// keeps the list whole if we die before the slot is taken off it for good.
		r.next = q.head.free()
		err = q.fill(slot, &r, ask)
	}
	if err == nil && tail != 0 {
		err = q.relink(tail, func(t *record) { t.next = slot })
	}
	if err != nil {
		return 0, r, err
	}
	q.head.setSeq(r.seq)
	if at.slot == 0 {
		q.head.setBucket(at.bucket, slot)
		return slot, r, q.save()
	}
	// Seq first: a number must not be used again if we die before the commit.
	if err := q.save(); err != nil {
		return 0, r, err
	}
	if err := q.relink(at.slot, func(o *record) { o.chain = slot }); err != nil {
		return 0, r, err
	}
	return slot, r, q.flush()
}

// take gets a free slot, in the header in memory: it is taken with the next save.
func (q *queueFile) take() (uint32, error) {
	if slot := q.head.free(); slot != 0 {
		r, err := q.record(slot)
		if err != nil {
			return 0, err
		}
		if r.next > q.head.high() {
			return 0, &damageError{file: q.name, what: fmt.Sprintf("the free list leads to slot %d of %d", r.next, q.head.high())}
		}
		q.head.setFree(r.next)
		return slot, nil
	}
	slot := q.head.high() + 1
	if slot > maxSlots {
		return 0, fmt.Errorf("%s is full: %d entries", q.name, maxSlots)
	}
	q.head.setHigh(slot)
	return slot, nil
}

// relink changes links of a record in one write.
func (q *queueFile) relink(slot uint32, change func(*record)) error {
	r, err := q.record(slot)
	if err != nil {
		return err
	}
	change(&r)
	return q.put(slot, &r)
}

// remove takes an entry out; newer is the one directly behind it in the queue, 0 if it is
// the newest. An error says that the entry is still in the queue. What can go wrong after the
// commit is left to the next operation that passes, as if we had died there.
func (q *queueFile) remove(slot uint32, r record, newer uint32) error {
	if err := q.mark(slot, &r); err != nil {
		return err
	}
	if q.unlink(slot, r, newer) != nil {
		return q.flush() // the mark, if that is still to be written
	}
	return nil
}

// mark is the commit. It sets the free list's link too, which saves a write later: next
// is not believed of a record that has left.
func (q *queueFile) mark(slot uint32, r *record) error {
	r.state, r.next = left, q.head.free()
	return q.put(slot, r)
}

// unlink takes a marked record out of the links and frees its slot.
func (q *queueFile) unlink(slot uint32, r record, newer uint32) error {
	var err error
	if newer != 0 {
		err = q.unlinkInside(r, newer)
	} else {
		err = q.unlinkNewest(slot, r)
	}
	if err != nil {
		return err
	}
	// Free only after nothing leads to it, or at once in the same write.
	q.head.setFree(slot)
	if q.head.empty() {
		q.head.setFree(0) // also brings back slots that a crash has lost
		q.head.setHigh(0)
	}
	return q.save()
}

func (q *queueFile) unlinkInside(r record, newer uint32) error {
	if r.prev != 0 {
		if err := q.relink(r.prev, func(p *record) { p.next = newer }); err != nil {
			return err
		}
	}
	return q.relink(newer, func(n *record) { n.prev = r.prev })
}

func (q *queueFile) unlinkNewest(slot uint32, r record) error {
	at, err := q.pointerTo(r.hash, slot)
	if err != nil {
		return err
	}
	to := r.chain
	if r.prev != 0 {
		// chain means nothing in an entry that is not the newest, which it is not yet.
		if err := q.relink(r.prev, func(p *record) { p.chain = r.chain }); err != nil {
			return err
		}
		to = r.prev
	}
	if at.slot != 0 {
		return q.relink(at.slot, func(o *record) { o.chain = to })
	}
	q.head.setBucket(at.bucket, to)
	return nil
}

// newerOf returns the entry directly behind a linked one, 0 if it is the newest. ok is
// false if the entry is not linked. The forward link is right unless a process died while
// changing it; only then is the queue walked from its end.
func (q *queueFile) newerOf(slot uint32, r *record, tail uint32) (newer uint32, ok bool, err error) {
	if slot == tail {
		return 0, true, nil
	}
	if r.next != 0 && r.next <= q.head.high() && r.state == queued {
		n, err := q.record(r.next)
		if err != nil {
			return 0, false, err
		}
		if n.state == queued && n.prev == slot && n.hash == r.hash && n.seq > r.seq {
			return r.next, true, nil
		}
	}
	err = q.walk(tail, func(s uint32, n *record) bool {
		if n.prev == slot {
			newer, ok = s, true
		}
		return !ok
	})
	return newer, ok, err
}

// walk visits a queue from its newest entry to its oldest, also what has left but is
// still linked, until visit returns false.
func (q *queueFile) walk(tail uint32, visit func(slot uint32, r *record) bool) error {
	for slot, last := tail, uint64(maxSeq+1); slot != 0; {
		r, err := q.record(slot)
		if err != nil {
			return err
		}
		if r.seq >= last {
			return &damageError{file: q.name, what: "a queue is not in its order"}
		}
		if !visit(slot, &r) {
			return nil
		}
		slot, last = r.prev, r.seq
	}
	return nil
}
