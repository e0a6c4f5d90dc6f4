package testkit

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"
)

// SameFormat fails if what a store has does not look as this number of its format did. stored is
// all of it, without times and random texts: see Shape. Clients of the older number would misread
// it, and refuse nothing: a change needs another number, and then this test another hash.
func SameFormat(t testing.TB, what string, number int, stored []string, hash string) {
	t.Helper()
	text := strings.Join(stored, "\n")
	sum := sha256.Sum256([]byte(text))
	if got := hex.EncodeToString(sum[:8]); got != hash {
		t.Errorf("%s: what format %d stores has changed (%s, it was %s): give it another number\n%s", what, number, got, hash, text)
	}
}

var (
	moments = regexp.MustCompile(`\b\d{12,}\b`)
	randoms = regexp.MustCompile(`\b(?:[a-z0-9]{16}|[0-9a-f]{40}|[0-9a-f]{8}(?:(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})?)\b`)
)

// Shape is a text without what differs from run to run: moments, and random texts as drivers and
// servers draw them.
func Shape(text string) string {
	return randoms.ReplaceAllString(moments.ReplaceAllString(text, "TIME"), "RANDOM")
}
