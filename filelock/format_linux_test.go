//go:build !hasp_poll

package filelock

import (
	"fmt"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// What a store has: the names of its files, and how a header, a record, its details and a value
// are written, and a signal to another process. A change needs another number, in the format file
// and in the magic.
func TestStoredFormat(t *testing.T) {
	h := make(header, pageSize)
	h.init(0x2a, fileIdentity{dir: 3, file: 4}, 5)
	h.setHigh(6)
	h.seal()
	b := make([]byte, recordSize)
	k := newKey("orders/42")
	(&record{units: 1, capacity: 2, sum: 3, seq: 4, ticket: 5, hash: k.hash, session: sessionID{6: 7}}).encode(b)
	r := driver.Request{Name: k.name, ID: "id", Owner: "ana", Since: time.Unix(7, 8)}
	testkit.SameFormat(t, "file", formatNumber, []string{
		format, fmt.Sprint(pageSize, recordSize, maxSlots, firstSlots, detailsAt, queueFiles),
		fmt.Sprintf("%s/%02x %s/%q %s/%s %s", queuesDirName, k.file(), sessionsDirName, sessionID{6: 7}.String(), notesDir, noteName(k), formatFile),
		fmt.Sprintf("%x", h[:headerSize]), fmt.Sprintf("%x", b), fmt.Sprintf("%x", appendDetails(nil, &r)), fmt.Sprintf("%x", appendValue(nil, []byte("v"))),
		fmt.Sprintf("%x", appendSignal(nil, wakeTarget{ticket: 5, holds: 4})),
	}, "9015cf38a573f4cc")
}
