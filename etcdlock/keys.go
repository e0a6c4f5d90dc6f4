package etcdlock

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/hasplock/hasp/driver"
)

// The layout of the keys. P is the prefix, N the encoded name (which has no '/'), L the
// session's lease in hex, S a small number (see slots.go):
//
//	P N /     L-S   mutexes, writers, leaders; and every foreign lock
//	P N / ~r~ L-S   readers
//	P N / ~n~ L-S   permits of a semaphore of n
//	P ~epoch/ L     see leave.go
//	P ~evicted/ N   see evict.go
//	P ~format       see format.go
//
// No encoded name has a '~', so that the last three are in no name's range: no request
// compares or reads them beside entries, no watch reports them, and Names passes over them.
//
// L is that of the session that made the key. The lease that it is attached to may be another's,
// which has adopted the entry (adopt.go).
//
// The order of a queue is that of the create revisions, independent of the keys, as for
// `etcdctl lock PN`. The marks exist because a transaction can compare and
// read by range of keys, and by nothing else. With them it can refuse a semaphore among
// mutexes without having changed anything, and a reader among a thousand readers finds
// the one writer ahead of it without reading the thousand.

// maxEncoded leaves every name reversible: 512 bytes, each written as "%xx".
const maxEncoded = 3 * 512

// span is the range of keys from <= key < to.
type span struct{ from, to string }

// queue is the range of one name.
type queue struct {
	name string
	base string
}

func (b *Backend) queue(name string) queue {
	encoded, _ := driver.EncodeName(name, maxEncoded)
	return queue{name: name, base: b.prefix + encoded + "/"}
}

// afterMark is the byte behind '~', the least that no key of a marked group contains there.
const afterMark = "\x7f"

func (q queue) all() span     { return span{q.base, q.base[:len(q.base)-1] + "0"} } // '0' follows '/'
func (q queue) plain() span   { return span{q.base, q.base + "~"} }
func (q queue) anySems() span { return span{q.base + "~0", q.base + "~:"} } // ':' follows '9'
func (q queue) sems(n int64) span {
	mark := q.base + "~" + strconv.FormatInt(n, 10)
	return span{mark + "~", mark + afterMark}
}

// evictionKey is the key of the note about the last eviction from a name.
func (b *Backend) evictionKey(name string) string {
	encoded, _ := driver.EncodeName(name, maxEncoded)
	return b.prefix + "~evicted/" + encoded
}

func isSemaphore(r *driver.Request) bool { return r.Capacity != driver.Whole }
func isReader(r *driver.Request) bool    { return r.Capacity == driver.Whole && r.Units == 1 }

// keyPrefix is the part in front of the lease in r's key.
func (q queue) keyPrefix(r *driver.Request) string {
	switch {
	case isSemaphore(r):
		return q.sems(r.Capacity).from
	case isReader(r):
		return q.base + "~r~"
	}
	return q.base
}

// deniers is the range of the entries that can keep r from holding. Readers do not keep
// a reader out, and all entries under the name are of r's kind (see otherKinds).
func (q queue) deniers(r *driver.Request) span {
	switch {
	case isSemaphore(r):
		return q.sems(r.Capacity)
	case isReader(r):
		return q.plain()
	}
	return q.all()
}

// denierLimit is how many deniers deny r in any case, each having one unit at least.
func denierLimit(r *driver.Request) int64 {
	if isReader(r) {
		return 1 // a writer; see ticket.readAhead for what else may be there
	}
	return r.Capacity - r.Units + 1
}

// otherKinds are the ranges that must be without entries for r to be of the queue's kind.
func (q queue) otherKinds(r *driver.Request) []span {
	if !isSemaphore(r) {
		return []span{q.anySems()}
	}
	all, own := q.all(), q.sems(r.Capacity)
	return []span{{all.from, own.from}, {own.to, all.to}}
}

// record is the value of an entry's key: JSON, to be read with etcdctl and extended.
type record struct {
	ID       string    `json:"id"`
	Units    int64     `json:"units"`
	Capacity int64     `json:"capacity"`
	Owner    string    `json:"owner,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Value    []byte    `json:"value,omitempty"`
}

func encode(r *driver.Request) []byte {
	b, _ := json.Marshal(record{r.ID, r.Units, r.Capacity, r.Owner, r.Since, r.Value}) // no record fails
	return b
}

// entry reads a key of the queue. ok is false for what is no entry: keys without a lease,
// since every lock has one and nothing would ever remove such a key; and keys deeper
// down, which belong to another name (`etcdctl lock PN/x` makes PN/x/LEASE).
func (q queue) entry(kv *mvccpb.KeyValue) (e driver.Entry, ok bool) {
	if e, ok = q.keyed(kv); !ok || kv.Lease == 0 {
		return e, false
	}
	e.Session = leaseName(kv.Lease)
	var r record
	if json.Unmarshal(kv.Value, &r) == nil && r.ID != "" && r.Capacity == e.Capacity && r.Units > 0 {
		e.ID, e.Units, e.Owner, e.Since, e.Value = r.ID, r.Units, r.Owner, r.Since, r.Value
		return e, true
	}
	// Not ours: etcdctl lock and etcd's own package, whose elections put a value there.
	// The units in the key count, and else it takes the whole lock.
	e.Owner, e.Value = "lease "+e.Session+", without a hasp record", kv.Value
	return e, true
}

// keyed reads what the key alone says of an entry. It never says less units than the entry has.
func (q queue) keyed(kv *mvccpb.KeyValue) (e driver.Entry, ok bool) {
	id := string(kv.Key[len(q.base):])
	if id == "" || strings.Contains(id, "/") {
		return e, false
	}
	e.Name, e.Seq = q.name, uint64(kv.CreateRevision)
	e.Units, e.Capacity = driver.Whole, driver.Whole
	if mark, rest, marked := strings.Cut(strings.TrimPrefix(id, "~"), "~"); marked && id[0] == '~' {
		if n, err := strconv.ParseInt(mark, 10, 64); err == nil && n > 0 {
			id, e.Units, e.Capacity = rest, n, n
		} else if mark == "r" {
			id, e.Units = rest, 1
		}
	}
	e.ID = id
	return e, true
}

// entries reads a range's answer, and drops what is no entry.
func (q queue) entries(kvs []*mvccpb.KeyValue) []driver.Entry {
	list := make([]driver.Entry, 0, len(kvs))
	for _, kv := range kvs {
		if e, ok := q.entry(kv); ok {
			list = append(list, e)
		}
	}
	return list
}

// leaseName writes a lease as etcdctl does.
func leaseName(id int64) string { return strconv.FormatInt(id, 16) }
