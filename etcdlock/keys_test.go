package etcdlock

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
)

var encoded = []driver.Request{
	{ID: "8kq3-1f", Units: 1, Capacity: 1, Owner: `{"user":"u","host":"h","pid":7,"program":"p"}`, Since: time.Date(2026, 11, 24, 1, 2, 3, 4000, time.UTC)},
	{ID: `a"b\\`, Units: 3, Capacity: driver.Whole, Owner: "ä\x00\u2028<&>\xff", Value: []byte{0, 1, 2, 255}},
	{ID: "x", Units: 1, Capacity: 2},
}

// encoding/json reads what is written, as it reads its own output, which has more escapes.
func TestEncode(t *testing.T) {
	for _, r := range encoded {
		want := record{r.ID, r.Units, r.Capacity, r.Owner, r.Since, r.Value}
		canonical, err := json.Marshal(want)
		var got, back record
		if err == nil {
			err = json.Unmarshal(encode(&r), &got)
		}
		if err == nil {
			err = json.Unmarshal(canonical, &back)
		}
		if err != nil || !reflect.DeepEqual(got, back) {
			t.Errorf("%s is read as %+v, %v; want %+v", encode(&r), got, err, back)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		encode(&encoded[0])
	}
}

func BenchmarkMarshal(b *testing.B) {
	r := encoded[0]
	b.ReportAllocs()
	for b.Loop() {
		_, _ = json.Marshal(record{r.ID, r.Units, r.Capacity, r.Owner, r.Since, r.Value}) // to compare
	}
}
