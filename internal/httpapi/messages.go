// Package httpapi has what a client and the server of `hasp serve` say to each other: the messages
// and the errors. docs/SERVE.md describes them for people, and the server's OpenAPI document for
// programs; a test of the server compares that with the types here.
//
// The API is the contract of package driver over HTTP: a session there is a driver.Session here,
// and a lock is a driver.Ticket. So trust composes. A client counts from before its request to keep
// a session alive was sent, which is before the server sent its own to the store.
package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hasplock/hasp/driver"
)

// SessionHeader carries the id of a session. It is a secret, and a path is written to the logs of
// every proxy, so that it is in no path.
const SessionHeader = "Hasp-Session"

// Store says what is behind a server.
type Store struct {
	Server string   `json:"server"` // of one start of one server: its sessions end with that
	Label  string   `json:"label"`  // for messages: scheme, host and port
	Traits Traits   `json:"traits"`
	Can    []string `json:"can"` // the abilities below that the store has
}

// The abilities of a store and, from Publish on, of its locks.
const (
	Names      = "names"
	Evict      = "evict"
	Watch      = "watch"
	Quarantine = "quarantine"
	Diagnose   = "diagnose"
	Publish    = "publish"
	Downgrade  = "downgrade"
	Adopt      = "adopt"
)

// Traits are those of package driver. Only leased stores are served.
type Traits struct {
	FIFO     bool  `json:"fifo"`
	Shared   bool  `json:"shared"`
	Counting bool  `json:"counting"`
	Fencing  bool  `json:"fencing"`
	Values   bool  `json:"values"`
	Push     bool  `json:"push"`
	Forgets  bool  `json:"forgets"`
	MinTTL   int64 `json:"min_ttl_ms"`
}

// TraitsOf are the traits of a leased store as they are sent.
func TraitsOf(t driver.Traits) Traits {
	return Traits{FIFO: t.FIFO, Shared: t.Shared, Counting: t.Counting, Fencing: t.Fencing, Values: t.Values, Push: t.Push,
		Forgets: t.Forgets, MinTTL: int64((t.MinTTL + time.Millisecond - 1) / time.Millisecond)}
}

// Driver are the traits as a driver has them.
func (t Traits) Driver() driver.Traits {
	return driver.Traits{FIFO: t.FIFO, Shared: t.Shared, Counting: t.Counting, Fencing: t.Fencing, Values: t.Values, Push: t.Push,
		Forgets: t.Forgets, Liveness: driver.Leased, MinTTL: time.Duration(t.MinTTL) * time.Millisecond}
}

// OpenSession begins a session.
type OpenSession struct {
	TTL int64 `json:"ttl_ms"`
}

// Session is the answer to OpenSession.
type Session struct {
	Session string   `json:"session"`  // for SessionHeader
	Valid   int64    `json:"valid_ms"` // counted from before the request was sent
	Can     []string `json:"can"`      // what its locks can: Publish, Downgrade, Adopt
	Store   Store    `json:"store"`
}

// Alive is the answer to a keep-alive.
type Alive struct {
	Valid int64  `json:"valid_ms"`        // counted from before the request was sent
	Late  []Late `json:"late,omitempty"`  // locks that the store did not renew, each with its own remaining time
	Lost  []Lost `json:"lost,omitempty"`  // as in Events
	Error string `json:"error,omitempty"` // why there are Late ones
}

// Late is a lock that a keep-alive did not renew while it renewed others: its time goes on from
// before.
type Late struct {
	Lock  uint64 `json:"lock"`
	Valid int64  `json:"valid_ms"`

	// Unanswered: the store has not answered the request for it yet, so that it is no failure.
	Unanswered bool `json:"unanswered,omitempty"`
}

// Lost is a lock that the store has no more, although it was not released.
type Lost struct {
	Lock   uint64 `json:"lock"`
	Detail string `json:"detail"`
}

// Events are the news of a session that its client has not seen. To ask with after=Version says
// that those up to Version were seen.
type Events struct {
	Version  uint64    `json:"version"`
	Lost     []Lost    `json:"lost"`
	Changed  []Changed `json:"changed,omitempty"`
	Draining bool      `json:"draining,omitempty"` // this server is about to end: open a session at another, and adopt what is held
}

// Changed says what has become of a lock that waits while no request waited for it: it is Held, or
// it is Waiting and the server waits no longer, because the store has answered with an error. Then
// ask again.
type Changed struct {
	Lock  uint64 `json:"lock"`
	State string `json:"state"`
	Token uint64 `json:"token,omitempty"`
}

// Acquire asks for a lock, or asks again.
type Acquire struct {
	Name     string    `json:"name"`
	Kind     string    `json:"kind,omitempty"`     // mutex, read, write, semaphore; or Units and Capacity alone
	Units    int64     `json:"units,omitempty"`    // of a semaphore; 1 if absent
	Capacity int64     `json:"capacity,omitempty"` // of a semaphore
	Entry    string    `json:"entry,omitempty"`    // the entry's id in the store; drawn by the server if absent
	Owner    string    `json:"owner,omitempty"`    // as hasp writes it
	Note     string    `json:"note,omitempty"`     // for people, if there is no Owner
	Asks     string    `json:"asks,omitempty"`     // the same: why the holder is asked to give the lock up
	Since    time.Time `json:"since,omitzero"`
	Value    []byte    `json:"value,omitempty"`
	NoWait   bool      `json:"no_wait,omitempty"` // do not queue
	Wait     int64     `json:"wait_ms,omitempty"` // answer when it is held, or after this
}

// The states of a lock.
const (
	Held    = "held"
	Waiting = "waiting" // it is in the queue
	Busy    = "busy"    // with no_wait: another holds it, and nothing is left in the queue
)

// Lock is the answer about a lock.
type Lock struct {
	State      string `json:"state"`
	Token      uint64 `json:"token,omitempty"`         // the fencing token, where the store has them
	Entry      string `json:"entry,omitempty"`         // the entry's id in the store
	Retry      int64  `json:"retry_ms,omitempty"`      // ask again after this: the store may not announce the next change
	Holder     string `json:"holder,omitempty"`        // the owner of an entry in the way, where the answer had it
	Place      int    `json:"place,omitempty"`         // which of those who wait it is, where the answer had it: 1 is the next
	Quarantine int64  `json:"quarantine_ms,omitempty"` // the store grants nothing for so long

	LooksOver time.Time `json:"looks_over,omitzero"` // by that owner's own stamp its time is over since then
}

// AdoptLock takes over another session's entry: the client's of a session that it cannot go on
// with.
type AdoptLock struct {
	Acquire
	From        string `json:"from,omitempty"`         // the entry; absent: the one that the server has named, by the last two
	Seq         uint64 `json:"seq"`                    // its token
	FromSession string `json:"from_session,omitempty"` // the session that it is in, and
	FromLock    uint64 `json:"from_lock,omitempty"`    // its number there: they prove that it is the client's own
}

// Value replaces what is published with a lock.
type Value struct {
	Value  []byte `json:"value"`
	Number uint64 `json:"number,omitempty"` // grows with each value; one that comes later than a greater one is dropped
}

// Smaller makes a lock smaller.
type Smaller struct {
	Units int64 `json:"units"`
}

// Queue lists entries, oldest first, MostEntries of them at most. More says that there are others:
// ask for those after the Seq of the last.
type Queue struct {
	Entries []Entry `json:"entries"`
	More    bool    `json:"more,omitempty"`
}

// MostEntries is how many entries an answer has at most: a queue may have ten thousand, and each
// reader would keep the store from others.
const MostEntries = 500

// Entry is a driver.Entry.
type Entry struct {
	Name     string    `json:"name"`
	ID       string    `json:"entry"`
	Units    int64     `json:"units"`
	Capacity int64     `json:"capacity"`
	Owner    string    `json:"owner,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Value    []byte    `json:"value,omitempty"`
	Seq      uint64    `json:"seq"`
	Left     int64     `json:"left_ms,omitempty"`

	LooksOver time.Time `json:"looks_over,omitzero"` // by its owner's own stamp its time is over since then

	Session string `json:"session,omitempty"`
	Waits   bool   `json:"waits,omitempty"`
}

// EntryOf is an entry as it is sent.
func EntryOf(e driver.Entry) Entry {
	return Entry{Name: e.Name, ID: e.ID, Units: e.Units, Capacity: e.Capacity, Owner: e.Owner, Since: e.Since, Value: e.Value,
		Seq: e.Seq, Left: e.Left.Milliseconds(), LooksOver: e.LooksOver, Session: e.Session, Waits: e.Waits}
}

// Driver is the entry as a driver has it.
func (e Entry) Driver() driver.Entry {
	return driver.Entry{
		Request: driver.Request{Name: e.Name, ID: e.ID, Units: e.Units, Capacity: e.Capacity, Owner: e.Owner, Since: e.Since, Value: e.Value},
		Seq:     e.Seq, Left: time.Duration(e.Left) * time.Millisecond, LooksOver: e.LooksOver, Session: e.Session, Waits: e.Waits,
	}
}

// NameList has names that are in use.
type NameList struct {
	Names []string `json:"names"`
}

// EvictEntry removes somebody else's entry, or the client's own of a session that it cannot go on
// with.
type EvictEntry struct {
	Name        string `json:"name"`
	Entry       string `json:"entry,omitempty"`        // as AdoptLock.From
	Note        string `json:"note,omitempty"`         // kept where the store can record
	FromSession string `json:"from_session,omitempty"` // as in AdoptLock
	FromLock    uint64 `json:"from_lock,omitempty"`
}

// Text is an answer of one text: the last eviction's note.
type Text struct {
	Text string `json:"text"`
}

// Closed says for how long the store grants nothing.
type Closed struct {
	Quarantine int64 `json:"quarantine_ms"`
}

// Findings are those of a look at the store's settings.
type Findings struct {
	Findings []driver.Finding `json:"findings"`
}

// EntryName is the id of an entry that a server names. It follows from the session's id, a secret,
// and the lock's number there. So every server of the store can tell that a client which names the
// two is the entry's, and the session's id cannot be told from it.
func EntryName(session string, number uint64) string {
	mac := hmac.New(sha256.New, []byte(session))
	_, _ = fmt.Fprintf(mac, "entry %d", number) // to memory
	return "s-" + strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)))[:38]
}

// Named is the entry that a client means: the one that it names, or the one that a server has named
// for its lock.
func Named(entry, session string, number uint64) string {
	if entry == "" && session != "" {
		return EntryName(session, number)
	}
	return entry
}

// Owns reports whether an entry has the name that it got in a session.
func Owns(entry, session string, number uint64) bool {
	return session != "" && hmac.Equal([]byte(entry), []byte(EntryName(session, number)))
}

// Here reports a host, with or without a port, that names this machine and no other: what a server
// of this machine alone is asked by. A page in a browser here can ask it too, by another name that
// it leads to this machine (DNS rebinding): then the header Host has that name.
func Here(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	a, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && a.IsLoopback()
}
