package setnx

import (
	"regexp"

	"github.com/hasplock/hasp/redislock/internal/redisconn"
)

// Format returns a key's type and part of its contents, for Describe. Its only key is the lock's.
var Format = redisconn.NewScript(text("format"))

// known are the forms of the locks that hasp recognizes. The first pattern that matches "TYPE
// CONTENTS" counts. Random values of other libraries are recognized by their encoding.
var known = []struct {
	pattern string // compiled when a foreign lock is met, which is seldom
	what    string
	shared  string // how hasp can share the lock; "" if it cannot
}{
	{`^hash hasp2$`, "a queue of hasp, strategy=queue", "strategy=queue in every client"},
	{`^hash hasp1$`, "a queue of an older hasp", "one version of hasp in every client"},
	{`^hash mode (read|write)$`, "a read-write lock of Redisson", ""},
	{`^hash [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}:\d+$`, "a lock of Redisson", "strategy=redisson in every client"},
	{`^string [A-Za-z0-9-]{1,40} -?\d+\.\d+ \d+:`, "a lock of hasp, redlock://", "redlock:// in every client"},
	{`^string [A-Za-z0-9-]{1,40} -?\d+ `, "a lock of hasp, strategy=setnx", "strategy=setnx in every client"},
	{`^string [A-Za-z0-9+/]{22}==$`, "a lock as redsync writes it", "strategy=setnx"},
	{`^string [A-Za-z0-9_-]{22}$`, "a lock as bsm/redislock writes it", "strategy=setnx"},
	{`^string [0-9a-f]{32}$`, "a lock as redis-py or node-redlock writes it", "strategy=setnx"},
	{`^string `, "a string, as any SET NX may have written it", "strategy=setnx, if that is a lock"},
}

// Describe interprets the answer of Format: what the key has, and how hasp can share it, "" if it
// cannot, or if it is no known lock. what is "" for a missing key or answer.
func Describe(answer any) (what, shared string) {
	parts, _ := answer.([]any)
	if len(parts) != 2 {
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
