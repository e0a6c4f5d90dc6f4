package hasp

import (
	"encoding/json"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
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

	// Raw is what another lock library wrote in the owner's place, if anything.
	Raw string `json:"raw,omitempty"`
}

// String is "user@host pid N (note or program)", with what is known of it.
func (o Owner) String() string {
	if o.Raw != "" {
		return fmt.Sprintf("another library's client (%q)", o.Raw)
	}
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
	if len(parts) == 0 {
		return "an unnamed owner"
	}
	return strings.Join(parts, " ")
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
)

// self describes this process. Only the base name of the program: arguments can carry
// secrets, and whoever can list the queue would read them.
func self() Owner {
	o := Owner{PID: os.Getpid(), Program: filepath.Base(os.Args[0])}
	o.Host, _ = os.Hostname()
	if u, err := user.Current(); err == nil {
		o.User = u.Username
	}
	return o
}

// The stored form is JSON: readable with the store's own tools, and extensible.
func (o Owner) encode() string {
	b, err := json.Marshal(o)
	if err != nil { // strings and an int cannot fail
		panic(err)
	}
	return string(b)
}

func decodeOwner(s string) Owner {
	var o Owner
	if s == "" {
		return o
	}
	if json.Unmarshal([]byte(s), &o) != nil || o == (Owner{}) {
		return Owner{Raw: s}
	}
	return o
}
