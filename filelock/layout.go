//go:build linux || darwin || freebsd

package filelock

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hasplock/hasp/driver"
)

// A queue file holds the entries of all names that hash to it:
//
//	page 0      header: last seq, free slots, the identity of the file, and for each
//	            bucket the newest entry of the first name in it; behind it the first few
//	            slots
//	slots       512 bytes each: a record (fixed size, with all links) and the details
//	overflow    4 KB for each slot, for details that do not fit; a hole in most files
//
// The entries of a name are linked from the newest back to the oldest (prev), which is
// the truth about the queue, and forward (next), which is only believed
// when prev agrees. The newest entries of the names in one bucket are linked by chain.
//
// Everything is little endian. Each write that matters stays inside one page of the file,
// from one page of memory: the kernel looks at a fatal signal only between such pieces,
// so kill -9 leaves it either done or not begun. The checksums are there for what is not
// ours: foreign writes, and pages mixed by a power cut.
//
// The first slots share the header's page because of that, and for speed: as long as a
// file has few entries, which is nearly always, an operation is one read and one write.
const (
	pageSize     = 4096
	slotSize     = 512
	recordSize   = 80
	inlineSize   = slotSize - recordSize
	maxSlots     = 1 << 16 // in each file: 4 million entries in all
	overflowAt   = pageSize + maxSlots*slotSize
	overflowSize = 4096

	queueFiles = 64
	buckets    = 128

	bucketsAt  = 64
	headerSize = bucketsAt + 4*buckets
	firstSlots = (pageSize - headerSize) / slotSize // those in page 0

	magic = "hasp-q1\n"
)

var le = binary.LittleEndian

// checksum makes its table, which takes 0.2 ms, when it is first called: programs that link all
// stores start often.
func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// sessionID names a session's file. It is random, and so never used twice.
type sessionID [16]byte

func (id sessionID) String() string { return string(id[:]) }

// key is a name and its hash, which chooses file and bucket. Names are compared in full,
// so that it need not be free of collisions.
type key struct {
	name string
	hash uint64
}

func newKey(name string) key {
	sum := sha256.Sum256([]byte(name))
	return key{name, le.Uint64(sum[:])}
}

func bucketOf(hash uint64) int { return int(hash % buckets) }
func fileOf(hash uint64) int   { return int(hash / buckets % queueFiles) }

// The states of a record that was ever written.
const (
	queued uint32 = 1 // in the queue
	left   uint32 = 2 // not any more, although it may still be linked: the next operation that passes unlinks it
)

// record is the part of an entry that operations read and write.
type record struct {
	state             uint32
	prev, next, chain uint32 // slots; 0 is none. next is the free list's link once state is left
	units, capacity   uint32
	size, sum         uint32 // of the details, without the value
	seq, hash         uint64
	ticket            uint64 // the owner's number for it, in signals
	session           sessionID
}

func (r *record) encode(b []byte) {
	for i, v := range [...]uint32{r.state, r.prev, r.next, r.chain, r.units, r.capacity, r.size, r.sum} {
		le.PutUint32(b[4+4*i:], v)
	}
	le.PutUint64(b[36:], r.seq)
	le.PutUint64(b[44:], r.hash)
	le.PutUint64(b[52:], r.ticket)
	copy(b[60:76], r.session[:])
	le.PutUint32(b[76:], 0)
	le.PutUint32(b, checksum(b[4:recordSize]))
}

// decode returns false if this is not a record that encode has written.
func (r *record) decode(b []byte) bool {
	if le.Uint32(b) != checksum(b[4:recordSize]) {
		return false
	}
	for i, v := range [...]*uint32{&r.state, &r.prev, &r.next, &r.chain, &r.units, &r.capacity, &r.size, &r.sum} {
		*v = le.Uint32(b[4+4*i:])
	}
	r.seq, r.hash, r.ticket = le.Uint64(b[36:]), le.Uint64(b[44:]), le.Uint64(b[52:])
	copy(r.session[:], b[60:76])
	return (r.state == queued || r.state == left) && r.size >= detailsHead && r.size <= inlineSize+overflowSize
}

// Details are: since (8 bytes), the lengths of name, id and owner (2 each), those three.
// Behind them is the value, with a separate checksum and length, since it alone
// changes: a publisher that dies while writing leaves a broken value of a dead entry,
// which is never read.
const (
	detailsHead = 8 + 3*2
	valueHead   = 4 + 2

	maxID, maxName, maxOwner, maxValue = 40, 512, 2048, 1024
)

// checkRequest refuses what the format has no room for. The core has checked most of it.
func checkRequest(r *driver.Request) error {
	switch {
	case len(r.Name) == 0 || len(r.Name) > maxName, len(r.ID) > maxID, len(r.Owner) > maxOwner, len(r.Value) > maxValue:
		return fmt.Errorf("%w: name, id, owner and value may have %d, %d, %d and %d bytes",
			driver.ErrInvalid, maxName, maxID, maxOwner, maxValue)
	case r.Units < 1 || r.Units > r.Capacity || r.Capacity > driver.Whole:
		return fmt.Errorf("%w: %d units of %d", driver.ErrInvalid, r.Units, r.Capacity)
	}
	return nil
}

func appendDetails(b []byte, r *driver.Request) []byte {
	var since int64
	if !r.Since.IsZero() {
		since = r.Since.UnixNano()
	}
	b = le.AppendUint64(b, uint64(since))
	for _, s := range [...]string{r.Name, r.ID, r.Owner} {
		b = le.AppendUint16(b, uint16(len(s)))
	}
	b = append(b, r.Name...)
	b = append(b, r.ID...)
	return append(b, r.Owner...)
}

func appendValue(b, value []byte) []byte {
	b = le.AppendUint32(b, checksum(value))
	b = le.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// parseDetails is the inverse of appendDetails, without Units, Capacity and Value.
func parseDetails(b []byte) (r driver.Request, ok bool) {
	name, id, owner := int(le.Uint16(b[8:])), int(le.Uint16(b[10:])), int(le.Uint16(b[12:]))
	if len(b) != detailsHead+name+id+owner {
		return r, false
	}
	if since := int64(le.Uint64(b)); since != 0 {
		r.Since = time.Unix(0, since)
	}
	rest := string(b[detailsHead:])
	r.Name, r.ID, r.Owner = rest[:name], rest[name:name+id], rest[name+id:]
	return r, true
}

// fileIdentity identifies a queue file: the inode numbers of the store's directory and of the
// file itself. A copy of a queue file is whole, and its checksums are right, but it shows a
// queue as it once was: it lacks the entries of the holders. A copy that takes the
// file's place, or is used in another store, has another identity than its header.
//
// A number is not used again while any process has the file open, and each that has an entry in it
// has. Device numbers are left out: they may change when the machine starts again.
type fileIdentity struct{ dir, file uint64 }

// fileIdentityOf returns the identity of an open file.
func fileIdentityOf(dir, file int) (h fileIdentity, err error) {
	if h.dir, err = inodeOf(dir); err == nil {
		h.file, err = inodeOf(file)
	}
	return h, err
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return uint64(st.Ino), err
}

// header gives names to the bytes of page 0.
type header []byte

func (h header) seq() uint64               { return le.Uint64(h[16:]) }
func (h header) setSeq(v uint64)           { le.PutUint64(h[16:], v) }
func (h header) high() uint32              { return le.Uint32(h[24:]) } // slots above it were never used
func (h header) setHigh(v uint32)          { le.PutUint32(h[24:], v) }
func (h header) free() uint32              { return le.Uint32(h[28:]) } // first slot of the free list
func (h header) setFree(v uint32)          { le.PutUint32(h[28:], v) }
func (h header) identity() fileIdentity    { return fileIdentity{le.Uint64(h[32:]), le.Uint64(h[40:])} }
func (h header) bucket(i int) uint32       { return le.Uint32(h[bucketsAt+4*i:]) }
func (h header) setBucket(i int, v uint32) { le.PutUint32(h[bucketsAt+4*i:], v) }

var noBuckets [4 * buckets]byte

// empty reports that no entry is linked, with any other content of the header.
func (h header) empty() bool { return bytes.Equal(h[bucketsAt:headerSize], noBuckets[:]) }

// init makes the header of an empty file.
func (h header) init(file int, at fileIdentity, seq uint64) {
	clear(h)
	copy(h, magic)
	le.PutUint32(h[12:], uint32(file))
	h.setSeq(seq)
	le.PutUint64(h[32:], at.dir)
	le.PutUint64(h[40:], at.file)
	h.seal()
}

func (h header) seal() { le.PutUint32(h[8:], checksum(h[12:headerSize])) }

const isCopy = "it is a copy that was put in the place of the queue file"

// maxSeq is far beyond every clock, and leaves room to count on from there.
const maxSeq = 1 << 62

// check says what is wrong with the header of an open file, or "". The
// identity is checked last: all other messages are then true of a copy, too.
func (h header) check(file int, at fileIdentity) string {
	switch {
	case string(h[:8]) != magic:
		return "it does not begin like a queue file"
	case le.Uint32(h[8:]) != checksum(h[12:headerSize]):
		return "the checksum of its header is wrong"
	case le.Uint32(h[12:]) != uint32(file):
		return fmt.Sprintf("it is the file of number %d", le.Uint32(h[12:]))
	case h.high() > maxSlots, h.free() > h.high(), h.seq() > maxSeq:
		return "its header makes no sense"
	case h.identity() != at:
		return isCopy
	}
	return ""
}
