package setnx_test

import (
	"strings"
	"testing"

	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// Values that clients have written to a Redis server, byte by byte, as the script returns them: the
// versions are those of dev/go.mod and dev/interop/versions.json. With each are similar values that
// must not be recognized.
func TestDescribe(t *testing.T) {
	const (
		bySetnx   = "strategy=setnx"
		anyString = "a string, as any SET NX may have written it"
		perhaps   = "strategy=setnx, if that is a lock"
	)
	for _, c := range []struct {
		who, kind, contents string
		what, shared        string
	}{
		// 16 random bytes in base64 with its padding.
		{"redsync 4.18", "string", "OlzYpbF+YzctLalV16WToA==", "a lock as redsync writes it", bySetnx},
		{"redsync 4.18", "string", "kfj3Hd9a/+j3Hd9akfj3Hw==", "a lock as redsync writes it", bySetnx},
		{"redsync, a byte more", "string", "OlzYpbF+YzctLalV16WToAA=", anyString, perhaps},
		{"redsync, a newline more", "string", "OlzYpbF+YzctLalV16WToA==\n", anyString, perhaps},

		// The same in base64 for URLs, without padding, and behind it the user's metadata, with
		// which no pattern could tell it from a word.
		{"bsm/redislock 0.9.4", "string", "B-Bzhf_OlgmGtSYBE_5pkQ", "a lock as bsm/redislock writes it", bySetnx},
		{"bsm/redislock with metadata", "string", "B-Bzhf_OlgmGtSYBE_5pkQ" + `{"by":"ana"}`, anyString, perhaps},
		{"bsm/redislock's token with the other alphabet", "string", "B+Bzhf/OlgmGtSYBE/5pkQ", anyString, perhaps},
		{"a letter less", "string", "B-Bzhf_OlgmGtSYBE_5pk", anyString, perhaps},
		{"a letter more", "string", "B-Bzhf_OlgmGtSYBE_5pkQQ", anyString, perhaps},

		// 16 bytes in hexadecimal: random ones, and a UUID's.
		{"node-redlock 4.2", "string", "39b292a1cfde8912091866b2faaee23a", "a lock as redis-py or node-redlock writes it", bySetnx},
		{"redis-py 8.1", "string", "0664b25ee5c911f1bf1a02fc00000001", "a lock as redis-py or node-redlock writes it", bySetnx},
		{"in capitals", "string", "0664B25EE5C911F1BF1A02FC00000001", anyString, perhaps},
		{"with a UUID's dashes", "string", "0664b25e-e5c9-11f1-bf1a-02fc00000001", anyString, perhaps},

		// Ours: the entry's id, the token and who it is; with redlock:// the generation and the
		// units, too. The script cuts longer values.
		{"strategy=setnx", "string", `enok5qyl3h4lskws-1 1795278696306235 {"user":"root","host":"vm","pid":16151,"program":"new.run"}`, "a lock of hasp, strategy=setnx", "strategy=setnx in every client"},
		{"strategy=setnx, an old entry", "string", "01JABC 1700000000000000 ana@web-3", "a lock of hasp, strategy=setnx", "strategy=setnx in every client"},
		{"redlock://", "string", `vqtlpq43r7m4fukv-1 1795278696253673.1 1: {"user":"root","host":"vm","pid":16149,"program":"new.run"}`, "a lock of hasp, redlock://", "redlock:// in every client"},
		{"redlock://, cut off", "string", `vqtlpq43r7m4fukv-1 1795278696253673.1 1: {"user":"ro`, "a lock of hasp, redlock://", "redlock:// in every client"},
		{"without a token", "string", "enok5qyl3h4lskws-1 soon", anyString, perhaps},
		{"an id that is too long", "string", strings.Repeat("a", 41) + " 1795278696306235 x", anyString, perhaps},

		// Hashes.
		{"Redisson 4.7", "hash", "a84aebb3-9d78-49df-8495-5be1c3b16d99:1", "a lock of Redisson", "strategy=redisson in every client"},
		{"Redisson's read-write lock", "hash", "mode read", "a read-write lock of Redisson", ""},
		{"strategy=queue in another format", "hash", "hasp12", "a queue of hasp, strategy=queue", "strategy=queue in every client"},
		{"strategy=queue", "hash", "hasp2", "a queue of hasp, strategy=queue", "strategy=queue in every client"},
		{"a hash of several fields", "hash", "", "a hash that is no lock known to hasp", ""},
		{"a hash of one field", "hash", "mode", "a hash that is no lock known to hasp", ""},
		{"Redisson's holder in a string", "string", "a84aebb3-9d78-49df-8495-5be1c3b16d99:1", anyString, perhaps},

		// rueidislock's value is 24 random bytes, which look like nothing.
		{"rueidislock", "string", "\x00\xff\n\x8a\x01OlzYpbF+YzctLalV16", anyString, perhaps},
		{"an empty string", "string", "", anyString, perhaps},
		{"a list", "list", "", "a list that is no lock known to hasp", ""},
		{"nothing", "none", "", "", ""},
	} {
		what, shared := setnx.Describe([]any{c.kind, c.contents})
		if what != c.what || shared != c.shared {
			t.Errorf("%s (%s %q): %q, shared by %q; want %q, %q", c.who, c.kind, c.contents, what, shared, c.what, c.shared)
		}
	}
}

// An unexpected answer of the script describes nothing: the original error stays.
func TestDescribeWithoutAnswer(t *testing.T) {
	for _, answer := range []any{nil, "string", []any{}, []any{"string"}, int64(1)} {
		if what, shared := setnx.Describe(answer); what != "" || shared != "" {
			t.Errorf("%v: %q, %q", answer, what, shared)
		}
	}
}
