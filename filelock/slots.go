//go:build linux || darwin || freebsd

package filelock

import (
	"fmt"

	"github.com/hasplock/hasp/driver"
)

// slotAt is where a slot is. The first are in page 0.
func slotAt(slot uint32) int64 {
	if slot <= firstSlots {
		return headerSize + int64(slot-1)*slotSize
	}
	return pageSize + int64(slot-firstSlots-1)*slotSize
}

func overflowOf(slot uint32) int64 { return overflowAt + int64(slot-1)*overflowSize }

// slotBytes returns the slot's part of its page, which it reads if another page was
// looked at last. Neighbours in a queue mostly entered one after the other and share a
// page, so a walk reads one page for every eight entries.
func (q *queueFile) slotBytes(slot uint32) ([]byte, error) {
	if slot == 0 || slot > q.head.high() {
		return nil, &damageError{file: q.name, what: fmt.Sprintf("a link leads to slot %d of %d", slot, q.head.high())}
	}
	in := slotAt(slot) % pageSize
	if slot <= firstSlots {
		return q.firstPage[in : in+slotSize], nil
	}
	page := int(slotAt(slot) / pageSize)
	if q.paged != page {
		q.paged = 0
		if err := q.readAt(q.page, int64(page)*pageSize); err != nil {
			return nil, err
		}
		q.paged = page
	}
	return q.page[in : in+slotSize], nil
}

// changed writes the first n bytes of a slot after off, which were changed in its page. In
// page 0 they wait for the next save or flush.
func (q *queueFile) changed(slot uint32, b []byte, off, n int) error {
	if slot <= firstSlots {
		q.dirty = max(q.dirty, int(slotAt(slot))+off+n)
		return nil
	}
	if err := q.writeAt(b[off:off+n], slotAt(slot)+int64(off)); err != nil {
		q.paged = 0 // the page in memory is ahead of the file
		return err
	}
	return nil
}

// record reads a slot's record.
func (q *queueFile) record(slot uint32) (r record, err error) {
	b, err := q.slotBytes(slot)
	if err == nil && !r.decode(b) {
		err = &damageError{file: q.name, what: fmt.Sprintf("the record in slot %d is broken", slot)}
	}
	return r, err
}

// put replaces the record of a slot.
func (q *queueFile) put(slot uint32, r *record) error {
	b, err := q.slotBytes(slot)
	if err != nil {
		return err
	}
	r.encode(b)
	return q.changed(slot, b, 0, recordSize)
}

// fill writes a slot as a whole: record, details, value. The slot is in no queue
// yet, so it does not matter where this is cut off.
func (q *queueFile) fill(slot uint32, r *record, ask *driver.Request) error {
	b := appendDetails(q.slot[:recordSize], ask)
	details := b[recordSize:]
	r.size, r.sum = uint32(len(details)), checksum(details)
	r.encode(b)
	b = appendValue(b, ask.Value)
	if len(b) > slotSize {
		if err := q.writeAt(b[slotSize:], overflowOf(slot)); err != nil {
			return err
		}
		b = b[:slotSize]
	}
	if slot <= firstSlots {
		copy(q.firstPage[slotAt(slot):], b)
	} else {
		q.paged = 0
	}
	return q.changed(slot, b, 0, len(b))
}

// tail reads n bytes that are off bytes behind the record. They are valid until the
// next look at another slot.
func (q *queueFile) tail(slot uint32, off, n int) ([]byte, error) {
	b, err := q.slotBytes(slot)
	if err != nil {
		return nil, err
	}
	inline := b[recordSize:]
	if off+n <= inlineSize {
		return inline[off : off+n], nil
	}
	if off+n > inlineSize+overflowSize {
		return nil, &damageError{file: q.name, what: fmt.Sprintf("the lengths in slot %d are wrong", slot)}
	}
	out := make([]byte, 0, n)
	if off < inlineSize {
		out = append(out, inline[off:]...)
	}
	rest := out[len(out):n]
	err = q.readAt(rest, overflowOf(slot)+int64(max(off-inlineSize, 0)))
	return out[:n], err
}

// details reads and checks what was written with the entry.
func (q *queueFile) details(slot uint32, r *record) (driver.Request, error) {
	b, err := q.tail(slot, 0, int(r.size))
	if err != nil {
		return driver.Request{}, err
	}
	d, ok := parseDetails(b)
	if !ok || checksum(b) != r.sum {
		return d, &damageError{file: q.name, what: fmt.Sprintf("the details in slot %d are broken", slot)}
	}
	d.Units, d.Capacity = int64(r.units), int64(r.capacity)
	return d, nil
}

// isNamed compares the full name of an entry whose hash agrees. It checks the details'
// sum before it says no: a name that was overwritten must not open a second queue beside
// the one that has the holder.
func (q *queueFile) isNamed(slot uint32, r *record, name string) (bool, error) {
	b, err := q.tail(slot, 0, int(r.size))
	if err != nil {
		return false, err
	}
	if checksum(b) != r.sum {
		return false, &damageError{file: q.name, what: fmt.Sprintf("the details in slot %d are broken", slot)}
	}
	n := int(le.Uint16(b[8:]))
	return n == len(name) && len(b) >= detailsHead+n && string(b[detailsHead:detailsHead+n]) == name, nil
}

// value reads the published value.
func (q *queueFile) value(slot uint32, r *record) ([]byte, error) {
	head, err := q.tail(slot, int(r.size), valueHead)
	if err != nil {
		return nil, err
	}
	sum, n := le.Uint32(head), int(le.Uint16(head[4:]))
	b, err := q.tail(slot, int(r.size)+valueHead, n)
	if err != nil {
		return nil, err
	}
	if checksum(b) != sum {
		return nil, &damageError{file: q.name, what: fmt.Sprintf("the value in slot %d is broken", slot)}
	}
	return append([]byte(nil), b...), nil
}

// setValue replaces the published value. It may take two writes; see layout.go on what is
// left if we die between them. The one that may need space on the disk comes first, so
// that a full disk leaves the old value's better half and an error, which the caller
// answers by publishing again.
func (q *queueFile) setValue(slot uint32, r *record, value []byte) error {
	b, off := appendValue(nil, value), int(r.size)
	split := min(max(inlineSize-off, 0), len(b))
	if rest := b[split:]; len(rest) > 0 {
		if err := q.writeAt(rest, overflowOf(slot)+int64(max(off-inlineSize, 0))); err != nil {
			return err
		}
	}
	if split == 0 {
		return nil
	}
	page, err := q.slotBytes(slot)
	if err != nil {
		return err
	}
	copy(page[recordSize+off:], b[:split])
	if err := q.changed(slot, page, recordSize+off, split); err != nil {
		return err
	}
	return q.flush()
}
