package driver

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
	"unicode/utf8"
)

// CheckName reports whether a lock name is usable: 1 to 512 bytes of valid UTF-8
// without NUL. The rule is the same on every store; nothing else about a name matters,
// and names that differ in any byte are different locks.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: the name is empty", ErrInvalid)
	case len(name) > 512:
		return fmt.Errorf("%w: the name has %d bytes, and at most 512 are allowed", ErrInvalid, len(name))
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: the name is not valid UTF-8", ErrInvalid)
	}
	for i := range len(name) {
		if name[i] == 0 {
			return fmt.Errorf("%w: the name contains a NUL byte", ErrInvalid)
		}
	}
	return nil
}

// hashMark starts an encoded name that is a hash. EncodeName never produces it
// otherwise: '~' is not in its alphabet.
const hashMark = "~"

// lowerBase32 keeps hashes free of capitals, for stores that fold case.
var lowerBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// EncodeName maps any lock name to at most limit bytes of a-z, 0-9, '-', '_', '.', '%'
// and '~', such that distinct names stay distinct, also where a store folds case, and
// none is ".", "..", empty, or a path. limit must be at least 64.
//
// A name that fits is written reversibly: letters a-z, digits, '-', '_' and a '.' that
// is not in front stand for themselves, every other byte is '%' and two lower-case hex
// digits. A longer one becomes '~' and the SHA-256 of the name; reversible is then
// false, and the driver stores the full name beside it, to list it and to compare it.
//
// Percent-encoding rather than base64: an operator can read most names in the store.
// Capitals are escaped rather than kept, since MySQL's default collations and macOS's
// file system would fold "A" onto "a".
func EncodeName(name string, limit int) (encoded string, reversible bool) {
	const hex = "0123456789abcdef"
	n := len(name)
	for i := range len(name) {
		if !plain(name, i) {
			n += 2
		}
	}
	if n > limit {
		sum := sha256.Sum256([]byte(name))
		return hashMark + lowerBase32.EncodeToString(sum[:]), false
	}
	if n == len(name) {
		return name, true
	}
	var b strings.Builder
	b.Grow(n)
	for i := range len(name) {
		if c := name[i]; plain(name, i) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String(), true
}

func plain(name string, i int) bool {
	c := name[i]
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.' && i > 0
}

// DecodeName is the inverse of EncodeName for reversible encodings. ok is false for a
// hash and for anything that EncodeName does not produce, such as a foreign file or
// key under the driver's prefix: accepting "%61" for "a" would give one name two homes.
func DecodeName(encoded string) (name string, ok bool) {
	if encoded == "" || strings.HasPrefix(encoded, hashMark) {
		return "", false
	}
	b := make([]byte, 0, len(encoded))
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		if c != '%' {
			b = append(b, c)
			continue
		}
		if i+2 >= len(encoded) {
			return "", false
		}
		hi, lo := unhex(encoded[i+1]), unhex(encoded[i+2])
		if hi < 0 || lo < 0 {
			return "", false
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	// Encoding again is the whole check of canonical form.
	name = string(b)
	if back, _ := EncodeName(name, len(encoded)+64); back != encoded {
		return "", false
	}
	return name, true
}

// ValidText reports whether every store keeps a text for people as it is: an owner, a note. It is
// UTF-8 without NUL, which PostgreSQL has no room for.
func ValidText(text string) bool {
	return utf8.ValidString(text) && !strings.Contains(text, "\x00")
}

// ValidID reports whether an entry of ours can have this ID, as Request.ID says. It is for requests
// that name one and come from elsewhere than the core, before any I/O.
func ValidID(id string) bool {
	for i := range len(id) {
		c := id[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-') {
			return false
		}
	}
	return id != "" && len(id) <= 40
}

func unhex(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	}
	return -1
}
