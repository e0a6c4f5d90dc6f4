package caslock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Version says which write a record is of. It is the store's own (a revision, an ETag) and is
// compared for equality only. Absent is that of a record that does not exist.
type Version string

// Absent is the version of a record that does not exist.
const Absent Version = ""

// ErrConflict says, as Swap's answer, that the record has another version: nothing was changed, and
// nothing will be by this request. It may also be returned where that is not known for certain of a
// request that a client library has sent twice: a conflict is always read back.
var ErrConflict = errors.New("the record has changed")

// Record has what is stored under a name.
type Record struct {
	Name  string // the lock's, also where the store calls the record otherwise
	ID    string // of the entry that holds; "": the lock is free
	Owner string // opaque, for people
	Since time.Time
	Value []byte

	// TTL is for how long the holder's entry lasts if it is not renewed, Renewed the holder's wall
	// clock at its last renewal. Renewed is compared with no clock to call a lock free.
	TTL     time.Duration
	Renewed time.Time

	Nonce string // another one in each write
	Token uint64 // of the last grant
	Note  string // of the last eviction

	// Foreign says that another program holds, in a format that the store shares with it. Such a
	// record has no token and no value, and its ID is the name that the program gives itself. It is
	// not stored.
	Foreign bool
}

// Store has what caslock needs of a store. All methods may be called at once from many goroutines.
// caslock bounds each request by half of the TTL, and does not wait for one that does not return
// when its context ends; it should, since no caller waits for it. The client library's own
// retries of writes are switched off: a request that is sent twice without a word may find its own
// first attempt and call it a conflict.
type Store interface {
	// String names the store for messages, without a secret.
	fmt.Stringer

	// Load returns the record of a name with its version, by a read that sees every write that was
	// answered before. A record that does not exist is the zero Record, Absent. What is no record is
	// an error that wraps driver.ErrMismatch: see Decode.
	Load(ctx context.Context, name string) (Record, Version, error)

	// Swap puts the record in the place of that with the version old, in one step, and returns its
	// new version; of Absent it creates the record. If there is another version: ErrConflict. An
	// error that wraps driver.ErrRefused says that nothing was changed; after any other it is not
	// known. The version is a new one even if r says what the old record said.
	Swap(ctx context.Context, r Record, old Version) (Version, error)

	// List calls yield for each record whose name begins with prefix, until yield returns false. A
	// store that has no more than the names in its list yields a Record with nothing but the Name,
	// and Absent: it is then loaded. Other records may be among them and are left out: each is an
	// answer, and the next one is waited for as long again.
	List(ctx context.Context, prefix string, yield func(Record, Version) bool) error

	// Close releases what the Store has opened.
	Close() error
}

// Watcher is a Store that reports changes.
type Watcher interface {
	// Watch calls changed with the record of the name as it is when the watch stands, and then
	// after every change (several may be folded into one), from one goroutine at a time, until ctx
	// ends or the watch breaks; it returns why.
	Watch(ctx context.Context, name string, changed func(Record, Version)) error
}

// Sequencer is a Store whose versions are numbers that only grow, also over deletions of the
// record.
type Sequencer interface {
	Number(v Version) (uint64, error)
}

// Deleter is a Store that can delete a record if it still has that version.
type Deleter interface {
	Delete(ctx context.Context, name string, old Version) error
}
