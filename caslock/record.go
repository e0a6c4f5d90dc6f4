package caslock

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
)

// format is the version of what Encode writes.
const format = 1

// encoded is a Record as stores of bytes have it.
type encoded struct {
	Format  int       `json:"hasp"`
	Name    string    `json:"name"`
	ID      string    `json:"id,omitempty"`
	Owner   string    `json:"owner,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Value   []byte    `json:"value,omitempty"`
	TTL     int64     `json:"ttl_ms,omitempty"`
	Renewed time.Time `json:"renewed"`
	Nonce   string    `json:"nonce"`
	Token   uint64    `json:"token,omitempty"`
	Note    string    `json:"note,omitempty"`
}

// Encode is a record for stores that keep bytes.
func (r Record) Encode() []byte {
	text, err := json.Marshal(encoded{format, r.Name, r.ID, r.Owner, r.Since, r.Value, r.TTL.Milliseconds(), r.Renewed, r.Nonce, r.Token, r.Note})
	if err != nil {
		panic(err) // only a time after the year 9999 cannot be encoded, and both are of this process
	}
	return text
}

// Decode is the inverse of Encode. Bytes of a later format, or of another program, are an error
// that wraps driver.ErrMismatch: they are never overwritten.
func Decode(text []byte) (Record, error) {
	var e encoded
	err := json.Unmarshal(text, &e)
	switch {
	case err != nil || e.Format == 0:
		return Record{}, fmt.Errorf("%w: what stands there is no record of hasp's", driver.ErrMismatch)
	case e.Format > format:
		return Record{}, fmt.Errorf("%w: the record has format %d, this build knows %d", driver.ErrMismatch, e.Format, format)
	case e.Name == "" || e.Nonce == "" || e.ID != "" && e.TTL <= 0 || e.TTL > int64(driver.Forever/time.Millisecond):
		return Record{}, fmt.Errorf("%w: the record lacks what each of hasp's has", driver.ErrMismatch)
	}
	return Record{
		Name: e.Name, ID: e.ID, Owner: e.Owner, Since: e.Since, Value: e.Value,
		TTL: time.Duration(e.TTL) * time.Millisecond, Renewed: e.Renewed, Nonce: e.Nonce, Token: e.Token, Note: e.Note,
	}, nil
}

// freed is the record without its holder. The token stays, so that the next one is greater.
func (r Record) freed() Record {
	return Record{Name: r.Name, Token: r.Token, Note: r.Note, Renewed: r.Renewed}
}

// stamped is the record as the next write has it: another nonce, so that no two writes look the
// same to those who compare records, or to a store whose version is a hash of the content; and, if
// it renews a record, a stamp that is later than before by at least resolution, also if this
// machine's clock was set back. Grants and releases need no step, since the holder is another one:
// with it, a name that is locked several times a second would have stamps ever further ahead of
// all clocks, and a record that seems to come from the future makes every try observe it first.
func (r Record) stamped(before time.Time, resolution time.Duration) Record {
	now := time.Now().UTC().Round(0)
	if resolution > 0 {
		now = now.Truncate(resolution)
		before = before.UTC().Truncate(resolution).Add(resolution)
	}
	if now.Before(before) {
		now = before
	}
	r.Renewed, r.Nonce = now, nonce()
	return r
}

func nonce() string { return strconv.FormatUint(rand.Uint64(), 36) }
