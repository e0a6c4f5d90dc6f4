package hasp_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp"
)

// A value is text in JSON where it can be, and comes back as it was in any case.
func TestEntryJSON(t *testing.T) {
	for value, want := range map[string]string{
		"":            "",
		"addr-ä":      `"value":"addr-ä"`,
		"\x80\x01":    `"value_base64":"gAE="`,
		"<a&b>\u2028": `"value":"`,
	} {
		e := hasp.Entry{ID: "x-1", Units: 1, Capacity: 4, Since: time.Unix(1, 0).UTC(), Owner: hasp.Owner{User: "ana"}, Holds: []string{"y"}}
		if value != "" {
			e.Value = []byte(value)
		}
		text, err := json.Marshal([]hasp.Entry{e})
		if err != nil || !strings.Contains(string(text), want) || strings.Contains(string(text), `"value`) != (value != "") {
			t.Errorf("%q: %s, %v", value, text, err)
		}
		var back []hasp.Entry
		if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(back, []hasp.Entry{e}) {
			t.Errorf("%q: %+v, %v", value, back, err)
		}
	}
}
