package caslock

import (
	"time"

	"github.com/hasplock/hasp/driver/kit/bootclock"
)

// clock has the readings of time that a backend uses. Tests set another one.
type clock struct {
	// wall is for stamps, which people read. What it says decides nothing: it may be set at any
	// moment.
	wall func() time.Time

	// now is for the age of what this client has sent.
	now func() bootclock.Instant
}

var machine = clock{time.Now, bootclock.Now}

// stamp is the record as the next write has it: another nonce, so that no two writes look the
// same to those who compare records, or to a store whose version is a hash of the content; and, if
// it renews a record, a stamp that is later than before by at least the resolution, also if this
// machine's clock was set back. Grants and releases need no such step, since the holder changes. It
// would do harm: the stamps of a name that is locked several times a second would run further and
// further ahead of all clocks, and each try would first have to observe a record of the future.
func (b *backend) stamp(r Record, before time.Time) Record {
	now := b.clock.wall().UTC().Round(0)
	if resolution := b.opts.Resolution; resolution > 0 {
		now = now.Truncate(resolution)
		before = before.UTC().Truncate(resolution).Add(resolution)
	}
	if now.Before(before) {
		now = before
	}
	r.Renewed, r.Nonce = now, nonce()
	return r
}

// looksOver reports whether a holder's own stamp says that its time is over, or is in the future.
// It is no proof, since clocks disagree: such a record is observed before anything is said of it.
func (b *backend) looksOver(r Record) bool {
	age := b.clock.wall().Sub(r.Renewed)
	return age > r.TTL || age < -r.TTL
}
