package hasp

import (
	"fmt"
	"time"

	"github.com/hasplock/hasp/driver"
)

// defaultTTL is the TTL that a client asks of its store by default: long enough for
// a garbage collection, a failover of the store or a lost packet, short enough that a
// crashed holder is not missed.
const defaultTTL = 10 * time.Second

// minMargin is the least time between the end of our trust and the earliest moment the
// store may hand the lock on.
const minMargin = 50 * time.Millisecond

type config struct {
	ttl     time.Duration
	margin  time.Duration // 0: the default for the granted TTL
	owner   Owner
	observe []Observer
}

// Functional options for the client. A zero TTL can then be refused instead of meaning "default": a
// TTL that a program has forgotten to set must not be silent. Drivers, which have many optional
// fields, take an Options struct whose zero means default.

// Option sets something of a whole Client.
type Option func(*config) error

// WithTTL sets how long the store keeps the locks of a client it no longer hears from: the longest
// time a crashed holder blocks others, and, less the safety margin, the longest outage a holder
// survives. Stores may grant another (ZooKeeper bounds it; etcd refuses what is not whole seconds
// from 2 s on); hasp counts with what was granted. Stores that are bound to the process (file) have
// no TTL and ignore it. Default: 10 s.
func WithTTL(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("%w: TTL must be greater than zero, not %s", ErrInvalid, d)
		}
		c.ttl = d
		return nil
	}
}

// WithSafetyMargin sets the time between two moments: a holder stops trusting its lease, and then,
// at the earliest, the store may hand the lock on. For resources that do not check the fencing
// token it must cover the longest pause between a check of [Lease.Held] or [Lease.Context] and the
// effect of the write behind it. Default: a tenth of the TTL, at least 50 ms.
func WithSafetyMargin(d time.Duration) Option {
	return func(c *config) error {
		if d <= 0 {
			return fmt.Errorf("%w: margin must be greater than zero, not %s", ErrInvalid, d)
		}
		c.margin = d
		return nil
	}
}

// WithOwner replaces what other clients are shown as the holder. Default: user, host,
// process id and program of this process. Do not put secrets here. Asks, Listens, Via and Raw must
// be empty: they are what the library says of an entry.
func WithOwner(o Owner) Option {
	return func(c *config) error {
		if o.Asks != "" || o.Listens || o.Via != "" || o.Raw != "" {
			return fmt.Errorf("%w: Asks, Listens, Via and Raw of an owner are not a client's to say: see AskHolder and Revocable", ErrInvalid)
		}
		if len(o.User)+len(o.Host)+len(o.Program) > maxNote || !driver.ValidText(o.User+o.Host+o.Program) {
			return fmt.Errorf("%w: user, host and program of an owner have at most %d bytes together, of UTF-8 without NUL", ErrInvalid, maxNote)
		}
		if err := checkNote(o.Note); err != nil {
			return err
		}
		if err := o.fits(); err != nil {
			return err
		}
		c.owner = o
		return nil
	}
}

// WithObserver reports every event of the client to o. Several observers are called in the order of
// their options. See [Observer].
func WithObserver(o Observer) Option {
	return func(c *config) error {
		if o != nil {
			c.observe = append(c.observe, o)
		}
		return nil
	}
}

var errNilOption = fmt.Errorf("%w: an option is nil", ErrInvalid)

func newConfig(opts []Option) (config, error) {
	c := config{ttl: defaultTTL, owner: self()}
	for _, opt := range opts {
		if opt == nil {
			return c, errNilOption
		}
		if err := opt(&c); err != nil {
			return c, err
		}
	}
	return c, nil
}

// check compares the settings with each other and with the store's floor, before any
// I/O.
func (c *config) check(t driver.Traits) error {
	if t.Liveness == driver.ProcessBound {
		return nil // nothing expires
	}
	if c.ttl < t.MinTTL {
		return fmt.Errorf("%w: TTL (%s) cannot be shorter than this store's floor (%s)", ErrInvalid, c.ttl, t.MinTTL)
	}
	return c.checkTTL(c.ttl)
}

// checkTTL demands that two renewals fit into the time a lease is trusted, so that one
// may fail.
func (c *config) checkTTL(ttl time.Duration) error {
	if trust, renew := c.trust(ttl), ttl/3; trust < 2*renew {
		return fmt.Errorf("%w: TTL (%s) less margin (%s) leaves %s of trust, and two renewals take %s; use a longer TTL or a smaller margin",
			ErrInvalid, ttl, c.marginOf(ttl), trust, 2*renew)
	}
	return nil
}

func (c *config) marginOf(ttl time.Duration) time.Duration {
	if c.margin > 0 {
		return c.margin
	}
	return max(ttl/10, minMargin)
}

// trust is how long after sending a successful renewal we believe in our entries: the
// granted TTL, less 1 % for the difference in rate between two machines' clocks, less
// the safety margin.
func (c *config) trust(granted time.Duration) time.Duration {
	if granted == driver.Forever {
		return driver.Forever
	}
	return granted - granted/100 - c.marginOf(granted)
}

// LockOption sets something of one Mutex, RWMutex, Semaphore or Election.
type LockOption func(*lockConfig)

type lockConfig struct {
	note *string
	asks string // see AskHolder
	requestOptions
	err error // of an option
}

// requestOptions are the options that concern each acquisition, and travel with its Request.
type requestOptions struct {
	reentrant    bool
	limits       limits
	holds        []string    // see Holding
	revoked      func(Owner) // see Revocable
	revokedEvery time.Duration
	deadlock     time.Duration // see FailOnDeadlock
}

// Note says what the lock is held for. Others see it as the holder's, in [Client.Inspect]
// and in busy messages. At most 1 KB of UTF-8; do not put secrets here.
func Note(text string) LockOption {
	return func(c *lockConfig) { c.note = &text }
}

func checkNote(note string) error {
	if len(note) > maxNote || !driver.ValidText(note) {
		return fmt.Errorf("%w: a note is at most %d bytes of UTF-8 without NUL (this one has %d)", ErrInvalid, maxNote, len(note))
	}
	return nil
}

func checkValue(value []byte) error {
	if len(value) > maxValue {
		return fmt.Errorf("%w: a published value has at most %d bytes (this one has %d)", ErrInvalid, maxValue, len(value))
	}
	return nil
}
