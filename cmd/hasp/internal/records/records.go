// Package records has the JSON of queues, entries and deadlocks, as the command and the page of hasp
// serve print it. The library's own types promise no JSON: what scripts read changes with the
// command, and what programs import with the library.
package records

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/hasplock/hasp"
)

// Queue is a [hasp.Queue].
type Queue struct {
	Name    string  `json:"name"`
	Holders []Entry `json:"holders"`
	Waiters []Entry `json:"waiters"`

	Quarantine time.Duration `json:"quarantine_ns,omitempty"`
}

// Entry is a [hasp.Entry]. Its fields are the same, so that the one converts to the other.
type Entry struct {
	ID        string     `json:"id"`
	Units     int64      `json:"units"`
	Capacity  int64      `json:"capacity"`
	Token     uint64     `json:"token,omitempty"`
	Owner     hasp.Owner `json:"owner"`
	Since     time.Time  `json:"since,omitzero"`
	Value     []byte     `json:"-"` // as value or value_base64
	Session   string     `json:"session,omitempty"`
	Holds     []string   `json:"holds,omitempty"`
	AnyOf     bool       `json:"any_of,omitempty"`
	LooksOver time.Time  `json:"looks_over,omitzero"`
	Expires   time.Time  `json:"expires,omitzero"`
}

// Deadlock is a [hasp.Deadlock].
type Deadlock struct {
	Waits   []Edge `json:"waits"`
	Certain bool   `json:"certain"`
}

// Edge is a [hasp.DeadlockEdge].
type Edge struct {
	Name   string `json:"name"`
	Waiter Entry  `json:"waiter"`
	On     Entry  `json:"on"`
}

// Of is the record of a queue.
func Of(q hasp.Queue) Queue {
	return Queue{q.Name, entries(q.Holders), entries(q.Waiters), q.Quarantine}
}

func entries(all []hasp.Entry) []Entry {
	r := make([]Entry, len(all)) // in JSON [], not null
	for i, e := range all {
		r[i] = Entry(e)
	}
	return r
}

// OfDeadlock is the record of a deadlock.
func OfDeadlock(d hasp.Deadlock) Deadlock {
	r := Deadlock{Certain: d.Certain}
	for _, w := range d.Waits {
		r.Waits = append(r.Waits, Edge{w.Name, Entry(w.Waiter), Entry(w.On)})
	}
	return r
}

// Value is a published one: as text where it is UTF-8, since an address is to be read, by people and
// by jq. Other values are in base64, under another key.
type Value struct {
	Text   string `json:"value,omitempty"`
	Base64 []byte `json:"value_base64,omitempty"`
}

// ValueOf is the record of a value.
func ValueOf(b []byte) Value {
	if utf8.Valid(b) {
		return Value{Text: string(b)}
	}
	return Value{Base64: b}
}

// MarshalJSON writes the value as one.
func (e Entry) MarshalJSON() ([]byte, error) {
	type fields Entry
	return json.Marshal(struct {
		fields
		Value
	}{fields(e), ValueOf(e.Value)})
}
