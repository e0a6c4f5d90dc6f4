package redislock

import (
	"regexp"
	"strings"
	"time"

	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// dialect is a format of other libraries: one key that exists while the lock is held, and no
// queue. A client tries to take the lock, and tries again when it may be free.
type dialect struct {
	take, give, extend, peek, adopt *redisconn.Script

	// companion begins the third key of a lock. Each dialect has its own: one name may be locked by
	// one dialect after the other, and such a key outlasts the lock.
	companion string

	// me is the value or the field by which an entry is the holder.
	me func(t *oneKeyTicket) string

	// takeArgs and giveArgs are the arguments of the scripts behind the common ones. member
	// is a waiter to remove, or empty.
	takeArgs func(t *oneKeyTicket) []string
	giveArgs func(a *oneKey, key, member string) []string

	// announces says that every client of the dialect publishes each release on the channel
	// of the name. Otherwise hasp's releases wake one of hasp's waiters.
	announces bool

	// foreign reports that the holder is a foreign client, which does not publish its release.
	foreign func(holder string) bool

	// holderForm, if not nil, is the form of a foreign holder of the dialect.
	holderForm *regexp.Regexp
}

// notALock reports that the key has something that is no lock of the dialect.
func (d *dialect) notALock(holder any) bool {
	text, ok := holder.(string)
	return ok && d.holderForm != nil && !ownValue.MatchString(text) && !d.holderForm.MatchString(text)
}

var (
	setNX = &dialect{
		take:   setnx.Take,
		give:   setnx.Give,
		extend: setnx.Extend,
		peek:   setnx.Peek,
		adopt:  setnx.Adopt,

		companion: setnx.WaitersPrefix,
		// Others write a random text; ours also names the owner.
		me:       func(t *oneKeyTicket) string { return t.request.ID + " " + ownerText(t.request) },
		takeArgs: func(t *oneKeyTicket) []string { return []string{t.member(), t.since} },
		giveArgs: func(a *oneKey, _, member string) []string { return a.wakeArgs(member) },
		foreign:  func(holder string) bool { return !ownValue.MatchString(holder) },
	}
	redisson = &dialect{
		take:   quarantine.NewScript(setnx.Common, lua("redisson/who"), lua("redisson/take")),
		give:   redisconn.NewScript(setnx.Common, lua("redisson/give")),
		extend: quarantine.NewScript(setnx.Renewal, lua("redisson/extend")),
		peek:   redisconn.NewScript(setnx.Common, lua("redisson/who"), lua("redisson/peek")),
		adopt:  quarantine.NewScript(setnx.Common, lua("redisson/who"), lua("redisson/adopt")),

		companion: setnx.DescriptionPrefix,
		// Redisson's own form: the client's UUID and a thread's number.
		me:         func(t *oneKeyTicket) string { return t.session.uuid + ":" + t.number },
		takeArgs:   holderArgs,
		giveArgs:   func(_ *oneKey, key, _ string) []string { return []string{redissonChannel(key)} },
		announces:  true,
		foreign:    func(string) bool { return false },
		holderForm: redissonHolder,
	}
)

// holderArgs are the text in the key beside Redisson's, which describes the holder, and how long
// that key is kept.
func holderArgs(t *oneKeyTicket) []string {
	return []string{t.request.ID + " " + ownerText(t.request), t.session.keep}
}

// ownValue is "ID since owner", as setNX.me writes it.
var ownValue = regexp.MustCompile(`^[A-Za-z0-9-]{1,40} -?\d+ `)

// redissonChannel is where Redisson publishes the releases of a lock.
func redissonChannel(key string) string {
	const prefix = "redisson_lock__channel:"
	if strings.Contains(key, "{") {
		return prefix + key
	}
	return prefix + "{" + key + "}"
}

// A waiter tries again after foreignPoll at the latest if no message announces the release, and
// after noExpiry if the key has no expiry.
const (
	foreignPoll = 500 * time.Millisecond
	noExpiry    = 5 * time.Second
)
