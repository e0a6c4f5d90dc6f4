//go:build linux || darwin || freebsd

package filelock

import (
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
//	page 0      header: last seq, number of records, the identity of the file; 64 bytes
//	records     64 bytes each, behind the header: the entry in slot n is at 64*n. Its units are 0
//	            if the slot is free. The entries of a name, by their seqs, are its queue
//	details     a page for each slot: what an entry is called, and its value; holes in most files
//
// Everything is little endian. Each write that matters stays inside one page of the file,
// from one page of memory: the kernel looks at a fatal signal only between such pieces,
// so kill -9 leaves it either done or not begun. The checksums are there for what is not
// ours: foreign writes, and pages mixed by a power cut.
//
// The records are as small as they are because every operation reads all of them: 63 in the page
// of the header, which is one read, and the rest in another. Nothing links them, so that no entry
// is ever half in a queue. A lock and its release take 8 us of CPU time beside up to a hundred
// entries in the file, 50 us beside 1,000 and 0.8 ms beside 10,000, which are as many processes
// that wait for a name, or 640,000 locks. *Rejected*: lists in the file, of which an operation
// reads what it needs: 15 us beside any number, for 470 lines more, and with entries that a dead
// process left half in a list.
const (
	pageSize   = 4096
	headerSize = 64
	recordSize = 64
	maxSlots   = 1 << 16 // in each file: 4 million entries in all
	firstSlots = (pageSize - headerSize) / recordSize
	detailsAt  = maxSlots * recordSize // of slot 0, which is none

	queueFiles = 64

	magic = "hasp-q2\n"
)

var le = binary.LittleEndian

// checksum makes its table, which takes 0.2 ms, when it is first called: programs that link all
// stores start often.
func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// sessionID names a session's file. It is random, and so never used twice.
type sessionID [16]byte

func (id sessionID) String() string { return string(id[:]) }

// nameHash tells names apart: half of a SHA-256, which no two names share that anybody can find.
type nameHash [16]byte

// key is a name and its hash, which chooses the file.
type key struct {
	name string
	hash nameHash
}

func newKey(name string) key {
	sum := sha256.Sum256([]byte(name))
	return key{name, nameHash(sum[:])}
}

func (k key) file() int { return int(k.hash[0] % queueFiles) }

// record is the part of an entry that every operation reads.
type record struct {
	slot            int    // where it is; from 1
	units, capacity uint32 // units are 0 if the slot is free
	sum             uint32 // of the details, without the value
	seq             uint64
	ticket          uint64 // the owner's number for it, in signals
	hash            nameHash
	session         sessionID
}

// weight is the units that an entry takes of its capacity.
func (r *record) weight() int64 { return int64(min(r.units, r.capacity)) }

func (r *record) encode(b []byte) {
	le.PutUint32(b[4:], r.units)
	le.PutUint32(b[8:], r.capacity)
	le.PutUint32(b[12:], r.sum)
	le.PutUint64(b[16:], r.seq)
	le.PutUint64(b[24:], r.ticket)
	copy(b[32:], r.hash[:])
	copy(b[48:], r.session[:])
	le.PutUint32(b, checksum(b[4:recordSize]))
}

// decode returns false if this is not a record that encode has written.
func (r *record) decode(b []byte) bool {
	r.units, r.capacity, r.sum = le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint32(b[12:])
	r.seq, r.ticket = le.Uint64(b[16:]), le.Uint64(b[24:])
	r.hash, r.session = nameHash(b[32:]), sessionID(b[48:])
	return le.Uint32(b) == checksum(b[4:recordSize])
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

// parseDetails is the inverse of both, for a page and the checksum of its details. Units and
// Capacity are the record's. value says whether that is whole, too.
func parseDetails(b []byte, sum uint32) (r driver.Request, value, ok bool) {
	name, id, owner := int(le.Uint16(b[8:])), int(le.Uint16(b[10:])), int(le.Uint16(b[12:]))
	size := detailsHead + name + id + owner
	if size+valueHead+maxValue > len(b) || checksum(b[:size]) != sum {
		return r, false, false
	}
	if since := int64(le.Uint64(b)); since != 0 {
		r.Since = time.Unix(0, since)
	}
	rest := string(b[detailsHead:size])
	r.Name, r.ID, r.Owner = rest[:name], rest[name:name+id], rest[name+id:]
	b = b[size:]
	r.Value = append([]byte(nil), b[valueHead:valueHead+min(int(le.Uint16(b[4:])), maxValue)]...)
	return r, checksum(r.Value) == le.Uint32(b), true
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

// header gives names to the first bytes of page 0.
type header []byte

func (h header) seq() uint64            { return le.Uint64(h[16:]) }
func (h header) setSeq(v uint64)        { le.PutUint64(h[16:], v) }
func (h header) high() int              { return int(le.Uint32(h[24:])) } // slots above it are free
func (h header) setHigh(n int)          { le.PutUint32(h[24:], uint32(n)) }
func (h header) identity() fileIdentity { return fileIdentity{le.Uint64(h[32:]), le.Uint64(h[40:])} }

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
	case h.high() > maxSlots, h.seq() > maxSeq:
		return "its header makes no sense"
	case h.identity() != at:
		return isCopy
	}
	return ""
}
