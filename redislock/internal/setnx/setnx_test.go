package setnx_test

import (
	"testing"

	"github.com/hasplock/hasp/redislock/internal/setnx"
)

// A companion key shows to which key it belongs, also if that has a hash tag, or braces that are
// none.
func TestTag(t *testing.T) {
	for key, want := range map[string]string{
		"orders": "{orders}", "{o}rders": "{o}{o}rders", "a{b}c": "{b}a{b}c",
		"a}b": "{}a}b", "{}a": "{}{}a", "{": "{{}", "}": "{}}", "a{b": "{a{b}", "a}{a": "{}a}{a", "{a}": "{a}{a}",
	} {
		got, _ := setnx.Tag(key)
		if got != want {
			t.Errorf("Tag(%q) = %q, want %q", key, got, want)
		}
		if back := setnx.Untag(got); back != key {
			t.Errorf("Untag(%q) = %q, want %q", got, back, key)
		}
	}
}

func FuzzTag(f *testing.F) {
	f.Add("a{b}{c}")
	f.Fuzz(func(t *testing.T, key string) {
		braced, _ := setnx.Tag(key)
		if back := setnx.Untag(braced); back != key {
			t.Fatalf("%q becomes %q and then %q", key, braced, back)
		}
	})
}
