// Package setnx has the scripts that take, keep and give back a lock which is one key: a
// random value that is set if there is none (SET NX PX), as redsync, node-redlock, redis-py
// and many others do. redislock's strategy=setnx uses them on one server, redlock on several.
//
// hasp's waiters are in a set beside the lock, so that a release of hasp wakes one of them, on the
// channel of its session, and not all. No other library knows of that set.
package setnx

import (
	"embed"
	"fmt"
	"regexp"
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
)

// The names of the keys beside a lock. Names of locks with this prefix are refused, so that no lock
// has the key of a companion.
const (
	CompanionPrefix   = "hasp:lock:"
	WaitersPrefix     = CompanionPrefix + "w:"
	DescriptionPrefix = CompanionPrefix + "d:"
	ChannelPrefix     = CompanionPrefix + "s:"
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

// Format returns a key's type and part of its contents, for Describe. Its only key is the lock's.
var Format = redisconn.NewScript(text("format"))

// known are the forms of the locks that hasp recognizes. The first pattern that matches "TYPE
// CONTENTS" counts. Random values of other libraries are recognized by their encoding.
var known = []struct {
	pattern string // compiled when a foreign lock is met, which is seldom
	what    string
	shared  string // how hasp can share the lock; "" if it cannot
}{
	{`^hash hasp\d+$`, "a queue of hasp, strategy=queue", "strategy=queue in every client"},
	{`^hash mode (read|write)$`, "a read-write lock of Redisson", ""},
	{`^hash [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+$`, "a lock of Redisson", "strategy=redisson in every client"},
	{`^string [A-Za-z0-9-]{1,40} -?\d+\.\d+ \d+:`, "a lock of hasp, redlock://", "redlock:// in every client"},
	{`^string [A-Za-z0-9-]{1,40} -?\d+ `, "a lock of hasp, strategy=setnx", "strategy=setnx in every client"},
	{`^string [A-Za-z0-9+/]{22}==$`, "a lock as redsync writes it", "strategy=setnx"},
	{`^string [A-Za-z0-9_-]{22}$`, "a lock as bsm/redislock writes it", "strategy=setnx"},
	{`^string [0-9a-f]{32}$`, "a lock as redis-py or node-redlock writes it", "strategy=setnx"},
	{`^string `, "a string, as any SET NX may have written it", "strategy=setnx, if that is a lock"},
}

// QueueFormat is the version of hasp's queue that a key has by the answer of Format, 0 if it has none.
func QueueFormat(answer any) (number int) {
	if parts, _ := answer.([]any); len(parts) > 1 && parts[0] == "hash" {
		_, _ = fmt.Sscanf(fmt.Sprint(parts[1]), "hasp%d", &number)
	}
	return number
}

// Describe interprets the answer of Format: what the key has, and how hasp can share it, "" if it
// cannot, or if it is no known lock. what is "" for a missing key or answer.
func Describe(answer any) (what, shared string) {
	parts, _ := answer.([]any)
	if len(parts) < 2 {
		return "", ""
	}
	kind, _ := parts[0].(string)
	contents, _ := parts[1].(string)
	if kind == "none" {
		return "", ""
	}
	for _, k := range known {
		if regexp.MustCompile(k.pattern).MatchString(kind + " " + contents) {
			return k.what, k.shared
		}
	}
	return "a " + kind + " that is no lock known to hasp", ""
}
