package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// EntryName is the id of an entry that a server names. It follows from the session's id, a secret,
// and the lock's number there. So every server of the store can tell that a client which names the
// two is the entry's, and the session's id cannot be told from it.
func EntryName(session string, number uint64) string {
	mac := hmac.New(sha256.New, []byte(session))
	_, _ = fmt.Fprintf(mac, "entry %d", number) // to memory
	return "s-" + strings.ToLower(base32.StdEncoding.EncodeToString(mac.Sum(nil)))[:38]
}

// Named is the entry that a client means: the one that it names, or the one that a server has named
// for its lock.
func Named(entry, session string, number uint64) string {
	if entry == "" && session != "" {
		return EntryName(session, number)
	}
	return entry
}

// Owns reports whether an entry has the name that it got in a session.
func Owns(entry, session string, number uint64) bool {
	return session != "" && hmac.Equal([]byte(entry), []byte(EntryName(session, number)))
}

// Here reports a host, with or without a port, that names this machine and no other: what a server
// of this machine alone is asked by. A page in a browser here can ask it too, by another name that
// it leads to this machine (DNS rebinding): then the header Host has that name.
func Here(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	a, err := netip.ParseAddr(name)
	return name == "localhost" || err == nil && a.IsLoopback()
}
