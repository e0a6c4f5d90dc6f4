package redislock

import (
	"regexp"
	"strings"
	"time"

	"github.com/hasplock/hasp/internal/redisconn"
	"github.com/hasplock/hasp/internal/setnx"
)

// dialect is a format of other libraries: one key that is there while somebody holds, and
// no queue. Whoever wants the lock tries, and tries again when it may be free.
type dialect struct {
	take, give, extend, peek, adopt *redisconn.Script

	// me is how an entry calls itself at the key.
	me func(t *attempt) string

	// takeArgs and giveArgs are the arguments of the scripts behind the common ones. member
	// is a waiter that is to be forgotten, or empty.
	takeArgs func(t *attempt) []string
	giveArgs func(a *attempts, key, member string) []string

	// announces says that every release is published, by anybody who speaks the dialect,
	// on the channel of the name. Otherwise our own releases wake one of our own waiters.
	announces bool

	// foreign reports that the holder is not one of ours, whose release nobody publishes.
	foreign func(holder string) bool

	// lock, if there is one, is how a lock of the dialect calls a holder that is not ours.
	lock *regexp.Regexp
}

// stranger reports that what was found at the key is no lock of the dialect.
func (d *dialect) stranger(holder any) bool {
	text, ok := holder.(string)
	return ok && d.lock != nil && !ownValue.MatchString(text) && !d.lock.MatchString(text)
}

var (
	setNX = &dialect{
		take:   setnx.Take,
		give:   setnx.Give,
		extend: setnx.Extend,
		peek:   setnx.Peek,
		adopt:  setnx.Adopt,
		// Others write some random text; ours also says who it is.
		me:       func(t *attempt) string { return t.request.ID + " " + ownerText(t.request) },
		takeArgs: func(t *attempt) []string { return []string{t.member(), t.since} },
		giveArgs: func(a *attempts, _, member string) []string { return a.wakeArgs(member) },
		foreign:  func(holder string) bool { return !ownValue.MatchString(holder) },
	}
	redisson = &dialect{
		take:   redisconn.NewScript(setnx.Common, lua("redisson/who"), lua("redisson/take")),
		give:   redisconn.NewScript(setnx.Common, lua("redisson/give")),
		extend: redisconn.NewScript(lua("redisson/extend")),
		peek:   redisconn.NewScript(setnx.Common, lua("redisson/who"), lua("redisson/peek")),
		adopt:  redisconn.NewScript(setnx.Common, lua("redisson/who"), lua("redisson/adopt")),
		// Redisson's own form: the client's UUID and a thread's number.
		me:        func(t *attempt) string { return t.session.uuid + ":" + t.number },
		takeArgs:  noted,
		giveArgs:  func(_ *attempts, key, _ string) []string { return []string{redissonChannel(key)} },
		announces: true,
		foreign:   func(string) bool { return false },
		lock:      redissonHolder,
	}
)

// noted is what stands beside Redisson's key: who holds, and for how long it stays there.
func noted(t *attempt) []string {
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

// How long a waiter waits for a lock whose release nobody announces, at the most, and for
// one without expiry.
const (
	foreignPoll = 500 * time.Millisecond
	noExpiry    = 5 * time.Second
)
