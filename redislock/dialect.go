package redislock

import (
	"regexp"
	"strings"
	"time"

	"github.com/hasplock/hasp/internal/redisconn"
)

// dialect is a format of other libraries: one key that is there while somebody holds, and
// no queue. Whoever wants the lock tries, and tries again when it may be free.
type dialect struct {
	take, give, extend, peek *redisconn.Script

	// me is how an entry calls itself at the key.
	me func(t *attempt) string

	// takeArgs and giveArgs are the arguments of the scripts behind the common ones.
	takeArgs, giveArgs func(t *attempt) []string

	// announces says that every release is published, by anybody who speaks the dialect,
	// on the channel of the name. Otherwise our own releases wake one of our own waiters.
	announces bool

	// foreign reports that the holder is not one of ours, whose release nobody publishes.
	foreign func(holder string) bool
}

var (
	setnx = &dialect{
		take:   redisconn.NewScript(lua("setnx/common"), lua("setnx/take")),
		give:   redisconn.NewScript(lua("setnx/common"), lua("setnx/give")),
		extend: redisconn.NewScript(lua("setnx/extend")),
		peek:   redisconn.NewScript(lua("setnx/common"), lua("setnx/peek")),
		// Others write some random text; ours also says who it is.
		me:       func(t *attempt) string { return t.request.ID + " " + people(t.request) },
		takeArgs: func(t *attempt) []string { return []string{t.member(), t.since} },
		giveArgs: func(t *attempt) []string { return t.session.store.wakeArgs(t.member()) },
		foreign:  func(holder string) bool { return !ownValue.MatchString(holder) },
	}
	redisson = &dialect{
		take:   redisconn.NewScript(lua("setnx/common"), lua("redisson/who"), lua("redisson/take")),
		give:   redisconn.NewScript(lua("setnx/common"), lua("redisson/give")),
		extend: redisconn.NewScript(lua("redisson/extend")),
		peek:   redisconn.NewScript(lua("setnx/common"), lua("redisson/who"), lua("redisson/peek")),
		// Redisson's own form: the client's UUID and a thread's number.
		me: func(t *attempt) string { return t.session.uuid + ":" + t.number },
		takeArgs: func(t *attempt) []string {
			return []string{t.request.ID + " " + people(t.request), millis(t.session.store.opts.Retention)}
		},
		giveArgs:  func(t *attempt) []string { return []string{redissonChannel(t.keys[0])} },
		announces: true,
		foreign:   func(string) bool { return false },
	}
)

// ownValue is "ID since owner", as setnx.me writes it.
var ownValue = regexp.MustCompile(`^[A-Za-z0-9-]{1,40} -?\d+ `)

// redissonChannel is where Redisson publishes the releases of a lock.
func redissonChannel(key string) string {
	const prefix = "redisson_lock__channel:"
	if strings.Contains(key, "{") {
		return prefix + key
	}
	return prefix + "{" + key + "}"
}

// The companions of a lock's key: its counter, and the set of our own waiters. Neither may
// be named like a lock, so their prefix is refused in names.
const (
	companionPrefix = "hasp:lock:"
	channelPrefix   = companionPrefix + "s:"
)

// tag returns the key's hash tag as Redis Cluster sees it, in braces, so that companions
// share its slot. ok is false for the few keys that have none and cannot be one.
func tag(key string) (braced string, ok bool) {
	if _, after, found := strings.Cut(key, "{"); found {
		if inner, _, found := strings.Cut(after, "}"); found && inner != "" {
			// The key has a tag of its own. The whole key follows it, to keep locks apart.
			return "{" + inner + "}" + key, true
		}
	}
	return "{" + key + "}", !strings.Contains(key, "}")
}

// How long a waiter waits for a lock whose release nobody announces, at the most, and for
// one without expiry.
const (
	foreignPoll = 500 * time.Millisecond
	noExpiry    = 5 * time.Second
)
