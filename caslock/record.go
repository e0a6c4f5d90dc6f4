package caslock

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/hasplock/hasp/driver"
)

// format is the version of what Encode writes, and of what its parts mean. That it is the number
// "hasp" of an object stays for good.
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
	text, err := json.Marshal(encoded{
		Format: format, Name: r.Name, ID: r.ID, Owner: r.Owner, Since: r.Since, Value: r.Value, TTL: r.TTL.Milliseconds(),
		Renewed: r.Renewed, Nonce: r.Nonce, Token: r.Token, Note: r.Note,
	})
	if err != nil {
		panic(err) // only a time after the year 9999 cannot be encoded, and both are of this process
	}
	return text
}

// Decode is the inverse of Encode. Bytes of another program are an error that wraps
// driver.ErrMismatch, those of another format one that wraps driver.ErrInvalid: they are never
// overwritten. The format counts first, since the rest may not be readable then.
func Decode(text []byte) (Record, error) {
	var e encoded
	err := json.Unmarshal(text, &e)
	switch {
	case e.Format != 0 && e.Format != format:
		return Record{}, driver.OtherFormat("the record", e.Format, format, "it")
	case err != nil || e.Format == 0:
		return Record{}, fmt.Errorf("%w: what stands there is no record of hasp's", driver.ErrMismatch)
	case e.Token >= math.MaxInt64: // written by hand: the next would be none
		return Record{}, fmt.Errorf("%w: the record's token is the greatest that there is", driver.ErrMismatch)
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

func nonce() string { return strconv.FormatUint(rand.Uint64(), 36) }
