package page

import (
	"testing"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/driver"
)

func TestRow(t *testing.T) {
	now := time.Now()
	entry := func(units, capacity int64, age time.Duration) hasp.Entry {
		return hasp.Entry{Units: units, Capacity: capacity, Since: now.Add(-age), Expires: now.Add(time.Minute), Token: 1 << 60, Owner: hasp.Owner{User: "ana"}}
	}
	for name, c := range map[string]struct {
		q    hasp.Queue
		want row
	}{
		"mutex":      {hasp.Queue{Holders: []hasp.Entry{entry(driver.Whole, driver.Whole, 0)}}, row{Kind: "exclusive", Holder: "ana"}},
		"readers":    {hasp.Queue{Holders: []hasp.Entry{entry(1, driver.Whole, 0), entry(1, driver.Whole, 0)}}, row{Kind: "readers", Holder: "ana", More: 1}},
		"semaphore":  {hasp.Queue{Holders: []hasp.Entry{entry(2, 5, 0), entry(1, 5, 0)}, Waiters: []hasp.Entry{entry(3, 5, 0)}}, row{Kind: "3 of 5", Holder: "ana", More: 1, Waiting: 1}},
		"quarantine": {hasp.Queue{Waiters: []hasp.Entry{entry(driver.Whole, driver.Whole, 0)}, Quarantine: time.Minute}, row{Kind: "exclusive", Waiting: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got := newRow(c.q, now)
			if got.Kind != c.want.Kind || got.Holder != c.want.Holder || got.More != c.want.More || got.Waiting != c.want.Waiting {
				t.Errorf("%+v", got)
			}
			if (got.Closed != 0) != (c.q.Quarantine > 0) {
				t.Errorf("closed until %d", got.Closed)
			}
			if len(c.q.Holders) > 0 && got.Token != "1152921504606846976" {
				t.Errorf("token %s", got.Token)
			}
		})
	}
	long := newRow(hasp.Queue{Waiters: []hasp.Entry{entry(1, driver.Whole, time.Second), entry(1, driver.Whole, time.Hour)}}, now)
	if long.Oldest != now.Add(-time.Hour).UnixMilli() {
		t.Errorf("the longest wait began at %d", long.Oldest)
	}
}

// A renewal is a change, and a second look at the same one is none.
func TestRowSame(t *testing.T) {
	a := &row{Name: "a", Holder: "ana", Expires: 60_000}
	for want, b := range map[bool]*row{true: {Name: "a", Holder: "ana", Expires: 60_400}, false: {Name: "a", Holder: "ana", Expires: 80_000}} {
		if a.same(b) != want {
			t.Errorf("%+v: %t", b, !want)
		}
	}
	if a.same(nil) || a.same(&row{Name: "a", Holder: "ben", Expires: 60_000}) {
		t.Error("another holder is no change")
	}
}
