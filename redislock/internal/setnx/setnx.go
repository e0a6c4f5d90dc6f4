// Package setnx has the scripts that take, keep and give back a lock which is one key: a
// random value that is set if there is none (SET NX PX), as redsync, node-redlock, redis-py
// and many others do. redislock's strategy=setnx uses them on one server, redlock on several.
//
// hasp's waiters are in a set beside the lock, so that a release of hasp wakes one of them, on the
// channel of its session, and not all. No other library knows of that set.
package setnx

import (
	"embed"
	"strings"

	"github.com/hasplock/hasp/redislock/internal/quarantine"
	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

//go:embed *.lua
var files embed.FS

func text(name string) func() string {
	return func() string {
		b, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(err) // embedded: one of the names below is wrong
		}
		return string(b)
	}
}

// Common is the common beginning of scripts on the same three keys.
var Common = text("common")

// Renewal is the beginning of the scripts that extend many locks.
var Renewal = text("renewal")

// The scripts. The comment of each file has its arguments and answers.
var (
	Take    = quarantine.NewScript(Common, text("take"))
	Give    = redisconn.NewScript(Common, text("give"))
	Adopt   = quarantine.NewScript(Common, text("adopt"))
	Publish = redisconn.NewScript(Common, text("publish"))
	Peek    = redisconn.NewScript(Common, text("peek"))
	Extend  = quarantine.NewScript(Renewal, text("extend"))

	// Identity and Member have other keys.
	Identity = redisconn.NewScript(text("identity"))
	Member   = redisconn.NewScript(text("member"))
)

// The names of the keys beside a lock. Names of locks with this prefix are refused, so that no lock
// has the key of a companion.
const (
	CompanionPrefix   = "hasp:lock:"
	WaitersPrefix     = CompanionPrefix + "w:"
	DescriptionPrefix = CompanionPrefix + "d:"
	ChannelPrefix     = CompanionPrefix + "s:"
	IdentityKey       = CompanionPrefix + "identity"
)

// Tag returns the key's hash tag as Redis Cluster sees it, in braces, so that companions share its
// slot, and behind it the rest that distinguishes the key from others. ok is false for the few keys
// that have no tag and cannot be one.
func Tag(key string) (braced string, ok bool) {
	if _, after, found := strings.Cut(key, "{"); found {
		if inner, _, found := strings.Cut(after, "}"); found && inner != "" {
			return "{" + inner + "}" + key, true
		}
	}
	if strings.Contains(key, "}") {
		return "{}" + key, false
	}
	return "{" + key + "}", true
}

// Untag is the inverse of Tag.
func Untag(braced string) string {
	inner, key, _ := strings.Cut(strings.TrimPrefix(braced, "{"), "}")
	if key == "" {
		return inner
	}
	return key
}
