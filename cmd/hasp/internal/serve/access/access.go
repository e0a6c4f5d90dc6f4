// Package access decides who may do what at a server: by tokens, of which only hashes are stored,
// and by the names of certificates.
package access

import (
	"bufio"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Right is something that a token may do with the names below a prefix.
type Right string

// The rights. None includes another.
const (
	Look    Right = "look"    // read queues and names
	Lock    Right = "lock"    // acquire
	Operate Right = "operate" // evict, take over, name entries, examine the store
)

// Holder is who has a token or a certificate.
type Holder struct {
	Name        string
	hash        Hash   // of the token; of a certificate nothing
	certificate string // its common name; "" for a token
	rules       []rule
}

// Hash is that of a token, which finds its holder as the token does.
type Hash [sha256.Size]byte

// Is reports whether two are one: of one name, and one token or certificate. What they may do can
// have changed between two reads of the file.
func (h *Holder) Is(other *Holder) bool {
	return h.Name == other.Name && h.hash == other.hash && h.certificate == other.certificate
}

// Same returns the holder as its line is now, nil if that has gone.
func (t *Tokens) Same(h *Holder) *Holder {
	if i := slices.IndexFunc(t.known, h.Is); i >= 0 {
		return t.known[i]
	}
	return nil
}

type rule struct {
	rights []Right
	prefix string
}

// Everyone has all rights: for a server that only this machine can reach.
func Everyone() *Holder {
	return &Holder{Name: "everyone", rules: []rule{{rights: []Right{Look, Lock, Operate}}}}
}

// May reports whether the holder has the right to a name.
func (h *Holder) May(r Right, name string) bool {
	for _, rule := range h.rules {
		if strings.HasPrefix(name, rule.prefix) && slices.Contains(rule.rights, r) {
			return true
		}
	}
	return false
}

// Tokens are those of a file. The zero value knows none.
type Tokens struct {
	known []*Holder
}

// ErrEmpty is for a file without a token.
var ErrEmpty = errors.New("there is no token; hasp serve token makes one")

// Has reports whether there is a token of that name.
func (t *Tokens) Has(name string) bool {
	return slices.ContainsFunc(t.known, func(h *Holder) bool { return h.Name == name })
}

// Certificates reports whether a line is for a certificate.
func (t *Tokens) Certificates() bool {
	return slices.ContainsFunc(t.known, func(h *Holder) bool { return h.certificate != "" })
}

// Read reads a file of tokens: lines of
//
//	NAME RIGHTS PREFIX sha256:HASH
//	NAME RIGHTS PREFIX cert:COMMON-NAME
//
// with rights such as look,lock and a prefix of names, "" or * for all. Several lines with one name
// and one credential add up. Empty lines, and those that begin with #, say nothing. Errors show the
// number of a line, and nothing of a hash.
func Read(r io.Reader) (*Tokens, error) {
	t := &Tokens{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if err := t.add(strings.Fields(text)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(t.known) == 0 {
		return nil, ErrEmpty
	}
	return t, nil
}

func (t *Tokens) add(fields []string) error {
	if len(fields) != 4 {
		return fmt.Errorf("it has %d fields, not NAME RIGHTS PREFIX sha256:HASH", len(fields))
	}
	allowed, err := parseRule(fields[1], fields[2])
	if err != nil {
		return err
	}
	h, err := parseCredential(fields[3])
	if err != nil {
		return err
	}
	for _, k := range t.known {
		same := k.hash == h.hash && k.certificate == h.certificate
		switch {
		case same && k.Name == fields[0]:
			k.rules = append(k.rules, allowed)
			return nil
		case same || k.Name == fields[0]:
			return fmt.Errorf("a name is for one token or certificate, and that for one name: %q is there already", k.Name)
		}
	}
	h.Name, h.rules = fields[0], []rule{allowed}
	t.known = append(t.known, h)
	return nil
}

// parseCredential reads what a holder is known by.
func parseCredential(field string) (*Holder, error) {
	if name, ok := strings.CutPrefix(field, "cert:"); ok && name != "" {
		return &Holder{certificate: name}, nil
	}
	digits, ok := strings.CutPrefix(field, "sha256:")
	hash, err := hex.DecodeString(digits)
	if !ok || err != nil || len(hash) != sha256.Size {
		return nil, errors.New("the last field is neither sha256: and 64 hexadecimal digits, nor cert: and a certificate's common name")
	}
	return &Holder{hash: Hash(hash)}, nil
}

// parseRule reads rights and a prefix.
func parseRule(rights, prefix string) (rule, error) {
	r := rule{prefix: prefix}
	if prefix == "*" || prefix == `""` {
		r.prefix = ""
	}
	for word := range strings.SplitSeq(rights, ",") {
		switch right := Right(word); right {
		case Look, Lock, Operate:
			r.rights = append(r.rights, right)
		default:
			return r, fmt.Errorf("%q is no right: they are look, lock and operate, with commas between them", word)
		}
	}
	return r, nil
}

// HashOf is the hash of a token.
func HashOf(token string) Hash { return sha256.Sum256([]byte(token)) }

// Find returns the holder of a token, nil if it has none.
func (t *Tokens) Find(token string) *Holder { return t.FindHash(HashOf(token)) }

// FindHash is Find by the token's hash. All hashes are compared, each in constant time, so that the
// time tells nothing about a hash, nor about a token.
func (t *Tokens) FindHash(sum Hash) *Holder {
	var found *Holder
	for _, h := range t.known {
		if subtle.ConstantTimeCompare(sum[:], h.hash[:]) == 1 && h.certificate == "" {
			found = h
		}
	}
	return found
}

// FindCertificate returns the holder of a certificate by its common name, nil if no line has it. It
// must have been verified.
func (t *Tokens) FindCertificate(commonName string) *Holder {
	for _, h := range t.known {
		if h.certificate != "" && h.certificate == commonName {
			return h
		}
	}
	return nil
}

// New draws a token and makes its line for the file. A token has 128 bits, so that its hash needs
// no salt and no work factor: to try them all is out of reach.
func New(name, rights, prefix string) (token, line string, err error) {
	if _, err := parseRule(rights, prefix); err != nil {
		return "", "", err
	}
	if prefix == "" {
		prefix = "*"
	}
	for _, s := range []string{name, prefix} {
		if s == "" || strings.ContainsAny(s, " \t\r\n") || strings.HasPrefix(s, "#") {
			return "", "", fmt.Errorf("a token's name and prefix have no blanks, and do not begin with #")
		}
	}
	token = rand.Text()
	sum := sha256.Sum256([]byte(token))
	return token, fmt.Sprintf("%s %s %s sha256:%s", name, rights, prefix, hex.EncodeToString(sum[:])), nil
}

// MayAnywhere reports whether the holder has the right to any name at all.
func (h *Holder) MayAnywhere(r Right) bool {
	return slices.ContainsFunc(h.rules, func(x rule) bool { return slices.Contains(x.rights, r) })
}
