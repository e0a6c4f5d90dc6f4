package zklock

import (
	"context"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/hasplock/hasp/driver"
)

// record is the data of an entry's node: for people, programs that inspect, and elections.
// Nothing in it decides who holds. JSON, to be read with ZooKeeper's own tools.
type record struct {
	ID    string    `json:"id"`
	Owner string    `json:"owner,omitempty"`
	Since time.Time `json:"since"`
	Value []byte    `json:"value,omitempty"`
}

func encodeRecord(r *driver.Request, value []byte) []byte {
	b, err := json.Marshal(record{ID: r.ID, Owner: r.Owner, Since: r.Since, Value: value})
	if err != nil {
		panic(err) // no strings, bytes and times of sane years fail
	}
	return b
}

// fill adds to an entry what its node says.
func fill(e *driver.Entry, n znode) {
	var r record
	if json.Unmarshal(n.data, &r) == nil && r.ID != "" {
		e.ID, e.Owner, e.Since, e.Value = r.ID, r.Owner, r.Since, r.Value
	} else {
		// Another library's: Curator writes the client's address, kazoo what it was told to.
		e.Since = time.UnixMilli(n.stat.Ctime)
		if utf8.Valid(n.data) {
			e.Owner = string(n.data)
		}
	}
	e.Seq = uint64(n.stat.Czxid)
	e.Session = sessionName(n.stat.EphemeralOwner)
}

// ownerOf reads the owner of a node, for the message of a refused try; "" if the node has gone or
// may not be read.
func (c *conn) ownerOf(ctx context.Context, node string) string {
	e, _ := c.holderOf(ctx, node)
	return e.Owner
}

// holderOf reads what a node says of its holder, and nothing if it has gone or may not be read.
func (c *conn) holderOf(ctx context.Context, node string) (e driver.Entry, found bool) {
	n, err := c.get(ctx, node)
	if err == nil {
		fill(&e, n)
	}
	return e, err == nil
}
