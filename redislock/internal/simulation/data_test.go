package simulation

import "maps"

// value is the value of a key: a string, a hash or a sorted set.
type value struct {
	kind    kind
	text    string
	hash    map[string]string
	scores  map[string]float64
	expires int64 // milliseconds of the server's clock; 0: never
}

type kind string

const (
	stringKind kind = "string"
	hashKind   kind = "hash"
	zsetKind   kind = "zset"
)

// data is all that a server keeps in its file, and replicates: two databases, and what is counted
// of the commands that made them.
type data struct {
	db [2]map[string]*value

	// streamed counts the commands of the replication stream that INFO commandstats shows and that
	// mark.lua looks at. A replica that follows the stream executes, and so counts, them too.
	streamed map[string]int
}

func newData() *data {
	return &data{db: [2]map[string]*value{{}, {}}, streamed: map[string]int{}}
}

// copy is deep: a file, a replica and a server that goes on share nothing.
func (d *data) copy() *data {
	c := &data{streamed: maps.Clone(d.streamed)}
	for i, db := range d.db {
		c.db[i] = make(map[string]*value, len(db))
		for key, v := range db {
			c.db[i][key] = v.copy()
		}
	}
	return c
}

func (v *value) copy() *value {
	c := *v
	c.hash, c.scores = maps.Clone(v.hash), maps.Clone(v.scores)
	return &c
}

func (d *data) keys() int { return len(d.db[0]) + len(d.db[1]) }
