package hasp

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// Owner tells people who has an entry. It is stored as written by that client: it
// explains, it proves nothing.
type Owner struct {
	User    string `json:"user,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	Note    string `json:"note,omitempty"` // see Note
	Asks    string `json:"asks,omitempty"` // see AskHolder

	// Listens: it is told of requests (see Revocable).
	Listens bool `json:"listens,omitempty"`

	// Via is the token by which a client of hasp serve has come in. What such an owner says of
	// itself is not checked by anybody.
	Via string `json:"via,omitempty"`

	// Raw is the text that another lock library wrote in the owner's place, if any.
	Raw string `json:"raw,omitempty"`
}

// String is "user@host pid N (note or program)", with what is known of it.
func (o Owner) String() string {
	var parts []string
	switch {
	case o.User != "" && o.Host != "":
		parts = append(parts, o.User+"@"+o.Host)
	case o.User != "" || o.Host != "":
		parts = append(parts, o.User+o.Host)
	}
	if o.PID != 0 {
		parts = append(parts, fmt.Sprintf("pid %d", o.PID))
	}
	if what := o.what(); what != "" {
		parts = append(parts, "("+what+")")
	}
	if o.Raw != "" {
		parts = []string{fmt.Sprintf("another library's client (%q)", o.Raw)}
	}
	who := cmp.Or(strings.Join(parts, " "), "an unnamed owner")
	if o.Via != "" {
		who += ", as the client with token " + strconv.Quote(o.Via) + " says"
	}
	return who
}

func (o Owner) what() string {
	if o.Note != "" {
		return o.Note
	}
	return o.Program
}

// maxNote bounds a note, maxValue a published value: queues are read as a whole, so a
// fat entry is everybody's cost.
const (
	maxNote  = 1024
	maxValue = 1024
	maxOwner = 2048 // as stored; drivers are promised no more
)

// self describes this process. Only the base name of the program: arguments can carry
// secrets, and every client that can list the queue would read them.
func self() Owner {
	o := Owner{PID: os.Getpid(), Program: filepath.Base(os.Args[0])}
	o.Host, _ = os.Hostname()
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	return o
}

// storedOwner is an Owner as it is stored.
type storedOwner struct {
	Owner

	// Holds are the ids of the entries that a waiter holds meanwhile. See Entry.Holds.
	Holds []string `json:"holds,omitempty"`

	// AnyOf: see Entry.AnyOf.
	AnyOf bool `json:"any_of,omitempty"`
}

// The stored form is JSON: readable with the store's own tools, and extensible. It goes
// into no HTML page, so '<' and its like stay one byte instead of six.
func (o storedOwner) encode() string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(o); err != nil { // strings and an int cannot fail
		panic(err)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (o Owner) encode() string { return storedOwner{Owner: o}.encode() }

// anyOf marks the stored owner of a waiter for several locks.
const anyOf = `,"any_of":true`

// fits refuses an owner that drivers need not be able to keep: a control character takes
// six bytes in JSON. There is room left for anyOf.
func (o Owner) fits() error {
	if n := len(o.encode()); n > maxOwner-len(anyOf) {
		return fmt.Errorf("%w: owner and note take %d bytes as JSON, %d are allowed", ErrInvalid, n, maxOwner-len(anyOf))
	}
	return nil
}

func decodeOwner(s string) storedOwner {
	var o storedOwner
	if s == "" {
		return o
	}
	if json.Unmarshal([]byte(s), &o) != nil || o.Owner == (Owner{}) && len(o.Holds) == 0 && !o.AnyOf {
		return storedOwner{Owner: Owner{Raw: s}}
	}
	return o
}
