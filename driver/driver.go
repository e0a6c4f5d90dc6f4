package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Whole is the capacity of a mutex and of a read-write lock, and the units that a
// writer takes of it. It leaves room for two billion readers and stays exact in a
// double, as Lua computes with it.
const Whole int64 = math.MaxInt32

// Forever is the duration of a session that its store never expires while the
// owner's process lives. Such a session is never renewed.
const Forever time.Duration = math.MaxInt64

// Request describes an entry as its owner wants it.
type Request struct {
	Name string // any valid UTF-8 without NUL, 1..512 bytes; the core has checked it

	// ID is chosen by the core, unique among all entries of all clients ever: plain
	// ASCII letters, digits and '-', at most 40 bytes (see ValidID). Enqueueing an ID twice makes
	// one entry, so that a lost reply is harmless.
	//
	// But a client of hasp serve may name the ID of another's entry. So a driver finds an entry by
	// its name, its ID and its session together, in every request: to another session's ID under
	// the same name it may say ErrGone, or make a second entry.
	ID string

	Units, Capacity int64     // 1 <= Units <= Capacity <= Whole
	Owner           string    // opaque to the driver, for people: at most 2 KB, see ValidText
	Since           time.Time // the owner's clock when it asked; for people only
	Value           []byte    // published with the entry, at most 1 KB
	NoWait          bool      // enter only if held at once
}

// Entry is a place in the queue as the store has it.
type Entry struct {
	Request
	Seq uint64 // order within the name; the token where Traits.Fencing

	// Left is for how long the store keeps the entry if its session is not renewed, at the moment
	// of the answer; 0 where nothing expires, and where it would cost a request more. For people.
	Left time.Duration

	// LooksOver is since when the owner's own stamp says that its time is over; zero where it says
	// nothing like that, and where the store has a clock. It proves nothing, since clocks differ:
	// the entry may still be held, and none takes the lock before it was seen unchanged for its
	// TTL.
	LooksOver time.Time

	Session string // entries of one session share it; "" where the store cannot tell

	// Waits: the store has not granted it. Only a Quarantiner says so, of an entry that would hold
	// by the rule: the core then asks whether the store grants nothing at the moment.
	Waits bool
}

// Verdict is the store's answer to "do I hold?".
type Verdict struct {
	Held  bool
	Token uint64 // the fencing token when Held; 0 where Traits.Fencing is false

	// Retry asks the core to call Enqueue again no later than this, because the store
	// may not announce the next change (an expiry, a lost notification). 0: Wait will
	// be told of every change.
	Retry time.Duration

	// Holder is the Owner of an entry in the way, where the answer happened to carry
	// it. It saves the caller of a try a second request; "" is always allowed.
	Holder string

	// LooksOver is Entry.LooksOver of an entry in the way, if a try is refused for one that it does
	// not wait for.
	LooksOver time.Time

	// Place is how many entries wait up to and including this one, where the answer happened to
	// carry it: 1 is the next to hold. Dead entries that the store has not removed yet may be
	// counted, not those that have left. For people; 0 is always allowed.
	Place int

	// Quarantine is for how long the store grants nothing, because it may have forgotten
	// grants, if a try is refused for that.
	Quarantine time.Duration
}

// Liveness says what keeps an entry in the store, and so how it can be lost.
type Liveness int

const (
	// Leased entries expire when their session is not renewed: a pause loses the lock.
	Leased Liveness = iota
	// ConnectionBound entries last as long as the store sees the connection: a stopped
	// holder keeps the lock, a silent partition holds it until keepalives give up.
	ConnectionBound
	// ProcessBound entries last exactly as long as the owner's process: nothing to lose.
	ProcessBound
)

func (l Liveness) String() string {
	switch l {
	case Leased:
		return "leased"
	case ConnectionBound:
		return "connection-bound"
	case ProcessBound:
		return "process-bound"
	}
	return fmt.Sprintf("Liveness(%d)", int(l))
}

// Traits are a driver's promises; drivertest holds it to each.
type Traits struct {
	FIFO     bool // grants follow Seq, and List shows those who wait
	Shared   bool // read-write locks: Units < Capacity with Capacity == Whole
	Counting bool // semaphores: any Capacity, any Units
	Fencing  bool // Verdict.Token is Seq, and it grows in the order of grants
	Values   bool // Request.Value is stored, and tickets implement Publisher
	Push     bool // Wait is told by the store, without polling it

	// Forgets: the store may lose an entry that it has confirmed, although no client removed
	// it and its time is not over (a restart without persistence, an eviction of keys, a
	// failover to a replica that lags). An entry that is missing proves nothing then: the
	// core does not take ErrGone, after a Leave without an answer, for that Leave's success.
	Forgets bool

	Liveness Liveness
	MinTTL   time.Duration // the core refuses a shorter TTL; 0: the store sets no floor
}

// SessionOptions are what the core asks of a session.
type SessionOptions struct {
	TTL time.Duration // wanted; the store may grant another

	// Gone tells the core that an entry (or with id "" the whole session) no longer
	// exists, as soon as the driver learns of it by event or in passing, while
	// renewing say. It may be called from any goroutine, more than once, and for
	// entries the core no longer cares about; it returns at once and calls nothing
	// back. The driver calls it while it holds none of its mutexes. Never nil.
	Gone func(id string, err error)
}

// Backend is a connection (or pool, or directory) to one store. All methods may be
// called at once from many goroutines. The root package's Client owns its Backend
// and closes it.
//
// What only some stores can do is in separate interfaces (Namer, Watcher, Evicter and others), and
// the core looks for each in the Backend's type. A Backend that wraps another and embeds this
// interface alone hides them all: the store then seems to list no names. Embed the driver's own
// type, or a struct of this interface and those that the wrapped one has.
type Backend interface {
	// String names the store for messages: scheme, host and port or path; never a
	// user name, password or token.
	fmt.Stringer

	Traits() Traits

	// Open starts a session. Counted from before the call, the store will not remove
	// the session's entries for the duration returned, those entered later included.
	// A store whose entries carry their own expiry has nothing to do here and returns TTL.
	// (Rejected: a first KeepAlive after Open, one round trip more for every short-lived process.)
	// ctx bounds this call, not the life of the session.
	Open(ctx context.Context, o SessionOptions) (Session, time.Duration, error)

	// List returns the first entries of a name, oldest first, those of other clients and,
	// where formats are shared, of other libraries included: at most limit, or all of them
	// if limit is 0. An unknown name has none. Who leads is the first entry's to tell, so
	// that a limit of 1 should not cost what a long queue costs.
	List(ctx context.Context, name string, limit int) ([]Entry, error)

	// Close releases what the Backend itself opened, never a client handed to it.
	// Sessions have been closed before, but for those whose Close does not return.
	// It takes a second or two at most, also while the store is silent.
	Close() error
}

// Session is the store's side of one client: its entries live and die with it.
type Session interface {
	// KeepAlive makes one round trip (or none, if nothing is in the store). Counted
	// from before the call, the store will not remove this session's entries for the
	// duration returned: every entry whose Enqueue has returned or is under way. To keep
	// that promise a driver notes an entry before it sends the request.
	// A method that finds that the session itself is gone also tells it by
	// SessionOptions.Gone with id "": the core then opens another.
	// A single entry that turns out to be missing is told by SessionOptions.Gone; an
	// error that wraps ErrGone means the session itself.
	//
	// A store that renews its entries one by one keeps what it has achieved when ctx ends:
	// the next call goes on with those that were renewed longest ago, and the duration
	// returned is that of the entry for which least is left. If some entries cannot be
	// renewed while others are (one node of a cluster is silent), the error is a
	// *PartialRenewal.
	KeepAlive(ctx context.Context) (time.Duration, error)

	// Ticket prepares an entry. It does no I/O.
	Ticket(r Request) Ticket

	// Close removes every entry of the session and ends it. After an error the store's
	// own expiry finishes the job.
	Close(ctx context.Context) error
}

// PartialRenewal is the error of a KeepAlive that has renewed some entries and not others.
// The core goes on to trust those that were renewed, and each of the others for as long as
// its own time lasts.
type PartialRenewal struct {
	// Granted is the duration that the call would have returned without those that are late.
	Granted time.Duration

	// Late has what is left for each entry that was not renewed, by its ID, counted like
	// Granted from before the call.
	Late map[string]time.Duration

	// Unanswered are those of Late whose Enqueue has not been answered: it is not known whether
	// they are in the store, and the driver goes on to ask. They are no failure of the renewal: if
	// all that are late are among them, the next one comes when it would come anyway.
	Unanswered map[string]bool

	// Slow: there was too little time for all, and every server got on with what it was asked. The
	// core then renews again at once, for as long as the oldest entry allows.
	Slow bool

	Err error // why; never nil
}

func (e *PartialRenewal) Error() string {
	return fmt.Sprintf("%d entries were not renewed: %v", len(e.Late), e.Err)
}

// Unwrap returns the cause.
func (e *PartialRenewal) Unwrap() error { return e.Err }

// Ticket is the owner's handle of one entry. The core calls Enqueue, Wait and Adopt one at a time;
// Publish, Downgrade and Leave may be called at once, and Leave also while another call has not
// returned.
//
// Enqueue is a method of the ticket, which is made without I/O, so that there is something to Leave
// by when the answer was lost.
type Ticket interface {
	// Enqueue puts the entry into the queue, or finds it there, and answers whether it
	// holds. The core repeats it after an error and when Verdict.Retry is over. With
	// NoWait and a Verdict that is not Held, nothing is left in the store.
	Enqueue(ctx context.Context) (Verdict, error)

	// Wait returns when the verdict may have changed since the last answer: early is
	// allowed, missing a change is not. One that ends with its context has answered nothing,
	// and may be repeated without an Enqueue between. If the entry or its session has gone it
	// returns an error wrapping ErrGone.
	Wait(ctx context.Context) (Verdict, error)

	// Leave removes the entry: it is also how to release. nil says the entry was there
	// and is gone, ErrGone that it was not there, ErrForgotten that it is not there, and
	// may have been forgotten since it was entered. Any other error: unknown, call
	// again. An Enqueue of the same ID that the network delivers after Leave was
	// answered must not make an entry that outlives the TTL.
	Leave(ctx context.Context) error
}

// Publisher is a Ticket that can replace the value of its held entry, in one step
// that fails with ErrGone if the entry no longer exists, or waits.
type Publisher interface {
	Publish(ctx context.Context, value []byte) error
}

// Downgrader is a Ticket that can make its held entry smaller in place, at the same Seq and
// with the same value, so that entries behind it may hold beside it; those are told as they
// are of a departure. units is at least 1. An entry never grows by it, so that a call that is
// repeated, or that the network delivers late, is harmless. ErrGone: there is no such entry, or it
// waits: made smaller it would hold beside what is ahead of it, and no client would know of it.
type Downgrader interface {
	Downgrade(ctx context.Context, units int64) error
}

// Adopter is a Ticket that can take over another session's held entry instead of making a new one.
// It is for stores whose entries do not end with a connection. A server of hasp serve needs it, to
// go on with what a client holds at another server.
type Adopter interface {
	// Adopt makes the entry that holds under the ticket's name with this ID and Seq the
	// ticket's own, in one step and in its place: the Seq, the units, the capacity and the
	// value stay as they are, its ID, Owner and Since become the request's, and it lives and
	// dies with the ticket's session from then on. No other entry is granted anything meanwhile.
	//
	// The ID changes so that all that the old owner still sends (renewals, a Leave, a second
	// Adopt by somebody else) finds nothing. Its session goes on telling Gone for the old ID,
	// as for any entry that is missing. The Seq stays: a higher one would be higher than those of
	// the waiters behind. The roads not taken are the same ID under another session, which a late
	// Leave by the ID would remove, and to release and enqueue anew, which leaves a gap.
	//
	// An entry whose session has expired, that waits, or whose units or capacity are not
	// those of the request is not adopted: ErrGone, as if it were not there. Called again,
	// Adopt finds the entry that it has adopted. That is one that holds, too: a ticket whose own
	// entry waits is no holder by naming it.
	Adopt(ctx context.Context, id string, seq uint64) (Verdict, error)
}

// Watcher is a Backend that can follow a name without asking again and again.
type Watcher interface {
	// Watch calls changed once as soon as the watch stands, then after every change of
	// the name's entries or values (several may be folded into one), until ctx ends or
	// the watch breaks. changed returns at once. A driver must not compare with its last
	// reading: the caller may have seen an entry that came and went in between.
	Watch(ctx context.Context, name string, changed func()) error
}

// Namer is a Backend that can list the names that have entries.
type Namer interface {
	// Names calls yield for each name that starts with prefix, in no promised order,
	// until yield returns false. It calls Progress for each answer of the store.
	Names(ctx context.Context, prefix string, yield func(name string) bool) error
}

// Evicter is a Backend that can remove somebody else's entry, for operators: the next
// grant has a higher token, and the old holder is told as soon as the store can tell.
type Evicter interface {
	// Evict removes the entry with this ID, or returns ErrGone if there is none. The note of at
	// most 4 KB, in which the core packs who evicts and why, is kept with the name in the same
	// step, in the place of an older one. It may be forgotten when the name has not been used for
	// as long as the store remembers names. An empty one is not kept; nor is any if nothing was
	// removed, or if the store has no room for notes.
	Evict(ctx context.Context, name, id, note string) error

	// LastEviction returns the note that is kept, "" if there is none, and ErrUnsupported if the
	// store keeps none.
	LastEviction(ctx context.Context, name string) (note string, err error)
}

// Quarantiner is a Backend of a store that can forget grants, and then grants nothing until the
// forgotten leases are over.
type Quarantiner interface {
	// Quarantine returns for how long the store grants nothing on a name; 0 if it does. It is
	// for people: a store that has not noticed yet that it may have forgotten grants returns 0.
	Quarantine(ctx context.Context, name string) (time.Duration, error)
}

// Finding is one line of `hasp doctor`.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"`        // what was looked at: "version", "persistence"
	Text    string `json:"text"`           // what was found
	Cure    string `json:"cure,omitempty"` // what to do about it
}

// Level grades a Finding.
type Level string

// The levels: a fact, a setting that weakens a promise, and one that breaks it.
const (
	Info Level = "info"
	Warn Level = "warn"
	Bad  Level = "bad"
)

// Diagnoser is a Backend that can examine its store for unsafe settings.
type Diagnoser interface {
	Diagnose(ctx context.Context) ([]Finding, error)

	// Warnings are those findings that a request or two can make: none for most stores. The core
	// asks when a client begins, in the background, and tells its observers what breaks a promise.
	Warnings(ctx context.Context) ([]Finding, error)
}

// Decide is the admission rule, for drivers that read the queue and decide in the
// client: me holds iff the units ahead plus its own fit into its capacity.
//
// ahead are the entries with a smaller Seq, oldest first. If me does not hold,
// blockers are the shortest run of entries directly ahead that denies it on its own:
// while all of them stay, the answer cannot change, and when one leaves it may. A
// waiter therefore watches its blockers and nothing else. For a mutex that is the
// predecessor; for a reader the nearest writer and what stands behind it; for a
// semaphore of n at most n entries. Watching only the predecessor would be wrong as
// soon as capacity exceeds one: another holder may leave first, and no waiter wakes.
//
// Units are clamped into 1..Capacity, so that a malformed foreign entry can delay,
// but neither overflow the sum nor vanish from it.
func Decide(ahead []Entry, me Request) (held bool, blockers []Entry) {
	free := me.Capacity - me.Units
	for i := len(ahead) - 1; i >= 0; i-- {
		u := min(max(ahead[i].Units, 1), me.Capacity)
		if u > free {
			return false, ahead[i:]
		}
		free -= u
	}
	return free >= 0, nil
}

// Place is Verdict.Place of an entry that does not hold behind all of ahead, oldest first: of those
// the first that fit hold.
func Place(ahead []Entry, capacity int64) int {
	free := capacity
	for i, e := range ahead {
		if free -= min(max(e.Units, 1), capacity); free < 0 {
			return len(ahead) - i + 1
		}
	}
	return 1
}

// CheckKind compares the capacity of me with that of the entries ahead and returns an
// error wrapping ErrMismatch if they differ: a semaphore of 3 and one of 5 under one
// name would each count wrongly.
func CheckKind(ahead []Entry, me Request) error {
	for _, e := range ahead {
		if e.Capacity != me.Capacity {
			return &MismatchError{Name: me.Name, Want: me.Capacity, Found: e.Capacity}
		}
	}
	return nil
}

// First returns the first limit entries, or all if limit is 0: what List is asked for, for
// drivers that read a queue as a whole.
func First(entries []Entry, limit int) []Entry {
	if limit > 0 && limit < len(entries) {
		return entries[:limit]
	}
	return entries
}

// The sentinels a driver's errors wrap. Anything else means "outcome unknown".
var (
	// ErrGone: the store says that this entry or session does not exist. Final.
	ErrGone = errors.New("gone from the store")
	// ErrForgotten: there is no such entry, but the store may have forgotten it (another server
	// answers, or it was started anew), so that it is not known whether it was there to the end.
	// Final. See also Traits.Forgets.
	ErrForgotten = errors.New("the store may have forgotten it")
	// ErrMismatch: the entries already queued under this name have another capacity
	// or another format. Nothing was changed.
	ErrMismatch = errors.New("entries of another kind under this name")
	// ErrUnsupported: this store or strategy cannot do what was asked. Nothing was sent.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrRefused: the store answered that it will not do it now: no permission, memory or
	// disk full, read-only. Nothing was changed. A caller that does not yet wait is told
	// at once; one that waits already is patient. An error that wraps ErrInvalid as well says
	// that patience is of no use: a user whom the server does not know.
	ErrRefused = errors.New("refused by the store")
	// ErrInvalid: what the caller gave is wrong: a name, a URL parameter, a password, a TTL under
	// the store's floor.
	ErrInvalid = errors.New("invalid input")
	// ErrReadOnly: this user may look at the store and not lock in it. It comes with ErrInvalid.
	ErrReadOnly = errors.New("only to be looked at")
	// ErrClosed: the backend or session was closed by its owner.
	ErrClosed = errors.New("closed")
)

// MismatchError says which capacities disagree under a name. It wraps ErrMismatch.
type MismatchError struct {
	Name        string
	Want, Found int64 // capacities
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("%q is in use as %s, not as %s", e.Name, kind(e.Found), kind(e.Want))
}

// Unwrap returns ErrMismatch.
func (e *MismatchError) Unwrap() error { return ErrMismatch }

func kind(capacity int64) string {
	if capacity == Whole {
		return "a mutex or read-write lock"
	}
	return fmt.Sprintf("a semaphore of %d", capacity)
}

// Migrator is a Backend that keeps its locks in tables, which somebody has to create. The
// driver does it at the first use where its role may; where it may not, an administrator
// does it once, with `hasp migrate` or with what `hasp migrate --print` prints.
type Migrator interface {
	// Schema returns the statements that bring an empty database to the version this
	// driver needs, ready to be reviewed and fed to the database's own shell. Applying
	// them twice does no harm. No I/O.
	Schema() string

	// Migrate applies what is missing and returns the versions before and after, 0 for an
	// empty database; they are equal if there was nothing to do. Several processes may
	// call it at once. A schema newer than the driver is an error that wraps ErrInvalid.
	Migrate(ctx context.Context) (from, to int, err error)
}

// Granter is a Migrator whose tables other roles can be allowed to use that may not create any.
type Granter interface {
	// Grant gives a role the rights that using the tables takes, and no others. The name is
	// anybody's text. A role that does not exist is an error that wraps ErrInvalid.
	Grant(ctx context.Context, role string) error
}
