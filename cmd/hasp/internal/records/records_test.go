package records_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/records"
)

// A queue is written with the keys that scripts read, its lists never null, and a value as text where
// it can be.
func TestQueue(t *testing.T) {
	for value, want := range map[string]string{
		"":            "",
		"addr-ä":      `,"value":"addr-ä"`,
		"\x80\x01":    `,"value_base64":"gAE="`,
		"<a&b>\u2028": `,"value":"\u003ca\u0026b\u003e\u2028"`,
	} {
		e := hasp.Entry{ID: "x-1", Units: 1, Capacity: 4, Since: time.Unix(1, 0).UTC(), Owner: hasp.Owner{User: "ana"}, Holds: []string{"y"}, Value: []byte(value)}
		text, err := json.Marshal(records.Of(hasp.Queue{Name: "a", Holders: []hasp.Entry{e}, Quarantine: 3}))
		whole := `{"name":"a","holders":[{"id":"x-1","units":1,"capacity":4,"owner":{"user":"ana"},"since":"1970-01-01T00:00:01Z","holds":["y"]` +
			want + `}],"waiters":[],"quarantine_ns":3}`
		if err != nil || string(text) != whole {
			t.Errorf("%q: %s, %v; want %s", value, text, err, whole)
		}
	}
}

// A deadlock has its edges with both entries.
func TestDeadlock(t *testing.T) {
	d := hasp.Deadlock{Certain: true, Waits: []hasp.DeadlockEdge{{Name: "a", Waiter: hasp.Entry{ID: "w"}, On: hasp.Entry{ID: "o", Token: 7}}}}
	text, err := json.Marshal(records.OfDeadlock(d))
	for _, want := range []string{`{"waits":[{"name":"a","waiter":{"id":"w",`, `"on":{"id":"o",`, `"token":7`, `"certain":true}`} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s, %v; want %s", text, err, want)
		}
	}
}
