package redlock

import (
	"encoding/base64"
	"regexp"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
)

// A key's value is "ID SINCE.ATTEMPT VERSION:DATA OWNER". The first two parts identify the holder:
// scripts compare them, and other libraries take all of it for random text. DATA is the
// published value in base64, VERSION tells its newest copy.
//
// ATTEMPT numbers the attempts of one ID. Each has a distinct value, so that a request to release
// one, however late it arrives, cannot remove the grant of a later one.

// me identifies the holder by an attempt.
func me(r driver.Request, attempt uint64) string {
	return r.ID + " " + strconv.FormatInt(r.Since.UnixMicro(), 10) + "." + strconv.FormatUint(attempt, 36) + " "
}

// published is a value and its version.
type published struct {
	version uint64
	value   []byte
}

// publishedLocked is the newest, at first that of the request.
func (t *ticket) publishedLocked() published {
	if t.published == nil {
		return published{1, t.request.Value}
	}
	return *t.published
}

// rest is the part behind it.
func rest(r driver.Request, p published) string {
	return strconv.FormatUint(p.version, 10) + ":" + base64.RawStdEncoding.EncodeToString(p.value) + " " + r.Owner
}

var ownValue = regexp.MustCompile(`^(([A-Za-z0-9-]{1,40}) (-?\d+)\.[0-9a-z]+ )(\d+):([A-Za-z0-9+/]*) ((?s).*)$`)

// held is a value that was read.
type held struct {
	me      string // all of a foreign value
	version uint64
	entry   driver.Entry
}

// parse reads a value; ours is false for one that another library wrote.
func parse(name, value string) (h held, ours bool) {
	h.me = value
	h.entry.Request = driver.Request{Name: name, ID: value, Units: driver.Whole, Capacity: driver.Whole, Owner: value}
	m := ownValue.FindStringSubmatch(value)
	if m == nil {
		return h, false
	}
	h.me = m[1]
	h.version, _ = strconv.ParseUint(m[4], 10, 64)
	e := &h.entry
	e.ID, e.Owner = m[2], m[6]
	if us, err := strconv.ParseInt(m[3], 10, 64); err == nil {
		e.Since = time.UnixMicro(us)
	}
	e.Value, _ = base64.RawStdEncoding.DecodeString(m[5])
	return h, true
}
