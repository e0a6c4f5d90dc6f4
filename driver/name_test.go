package driver_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hasplock/hasp/driver"
)

func TestEncodeName(t *testing.T) {
	for name, want := range map[string]string{
		"orders": "orders", "a-b_c.d9": "a-b_c.d9", "a/b": "a%2fb", "A": "%41", "a": "a",
		".": "%2e", "..": "%2e.", ".hidden": "%2ehidden", "a.": "a.", " ": "%20", "~": "%7e", "%": "%25", "a%2Fb": "a%252%46b",
		"é": "%c3%a9", "{x}": "%7bx%7d", "x'; DROP": "x%27%3b%20%44%52%4f%50", "\x01": "%01", "lock-0000000001": "lock-0000000001",
	} {
		got, reversible := driver.EncodeName(name, 64)
		if got != want || !reversible {
			t.Errorf("EncodeName(%q) = %q, %t; want %q", name, got, reversible, want)
		}
		if back, ok := driver.DecodeName(got); back != name || !ok {
			t.Errorf("DecodeName(%q) = %q, %t; want %q", got, back, ok, name)
		}
	}
}

func TestEncodeNameLimit(t *testing.T) {
	for _, c := range []struct {
		name       string
		limit      int
		reversible bool
	}{
		{strings.Repeat("a", 64), 64, true}, {strings.Repeat("a", 65), 64, false},
		{strings.Repeat("/", 21) + "a", 64, true}, {strings.Repeat("/", 21) + "aa", 64, false},
		{strings.Repeat("A", 512), 512, false}, {strings.Repeat("A", 512), 3 * 512, true},
	} {
		got, reversible := driver.EncodeName(c.name, c.limit)
		if len(got) > c.limit || reversible != c.reversible {
			t.Errorf("%d bytes into %d: %d bytes, reversible %t", len(c.name), c.limit, len(got), reversible)
		}
		if _, ok := driver.DecodeName(got); ok != c.reversible {
			t.Errorf("%q: decoded %t, reversible %t", got, ok, c.reversible)
		}
	}
}

// What EncodeName would not write is not ours.
func TestDecodeNameForeign(t *testing.T) {
	for _, s := range []string{
		"", "~", "~abc", "A", "a/b", "%", "%2", "%2F", "%61", "%zz", ".", "..", ".a", "a b", "a%", "a%2", "\xff", "%2f%", "é",
	} {
		if name, ok := driver.DecodeName(s); ok {
			t.Errorf("DecodeName(%q) = %q", s, name)
		}
	}
}

// FuzzName demands of any two names: reversible where it says so, within the limit and the
// alphabet, and distinct also for a store that folds case.
func FuzzName(f *testing.F) {
	long := strings.Repeat("n", 200)
	for _, s := range [][2]string{
		{"a", "A"}, {"a/b", "a%2fb"}, {"a", "a/"}, {".", ".."}, {"é", "e\u0301"}, {long + "1", long + "2"}, {"~" + long, long}, {"", "x"}, {"ſ", "s"}, {"K", "k"},
	} {
		f.Add(s[0], s[1], uint16(64))
	}
	f.Fuzz(func(t *testing.T, a, b string, limit uint16) {
		n := 64 + int(limit)
		ea, reversible := driver.EncodeName(a, n)
		if len(ea) > n || strings.Trim(ea, "abcdefghijklmnopqrstuvwxyz0123456789-_.%~") != "" {
			t.Fatalf("%q became %q, limit %d", a, ea, n)
		}
		if a != "" && (ea == "" || ea[0] == '.') {
			t.Fatalf("%q became %q", a, ea)
		}
		back, ok := driver.DecodeName(ea)
		if reversible && a != "" && (!ok || back != a) || !reversible && ok {
			t.Fatalf("%q became %q, reversible %t, and %q, %t", a, ea, reversible, back, ok)
		}
		if eb, _ := driver.EncodeName(b, n); a != b && strings.EqualFold(ea, eb) {
			t.Fatalf("%q and %q both became %q", a, b, ea)
		}
		// A text that can be decoded encodes to itself, so a name has one key.
		if name, ok := driver.DecodeName(a); ok {
			if again, _ := driver.EncodeName(name, 3*utf8.UTFMax*len(a)+64); again != a {
				t.Fatalf("%q was decoded to %q, whose home is %q", a, name, again)
			}
		}
	})
}
