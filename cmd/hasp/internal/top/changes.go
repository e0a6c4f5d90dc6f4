package top

import (
	"slices"
	"time"

	"github.com/hasplock/hasp"
)

// holderChanges remembers the holder of each name at the last looks.
type holderChanges map[string]*heldAt

type heldAt struct {
	first   time.Time // of these looks
	last    time.Time
	holder  string
	changes []time.Time // the latest of them
}

// rateOver is the time over which changes are counted.
const rateOver = 10 * time.Second

// note adds a look at a name and returns its changes per second. A name that was free in between
// counts as a change.
func (h holderChanges) note(q hasp.Queue, now time.Time) float64 {
	holder := ""
	if len(q.Holders) > 0 {
		holder = q.Holders[0].ID
	}
	at := h[q.Name]
	if at == nil {
		h[q.Name] = &heldAt{first: now, last: now, holder: holder}
		return 0
	}
	if holder != at.holder {
		at.changes = append(at.changes, now)
	}
	at.holder, at.last = holder, now
	at.changes = slices.DeleteFunc(at.changes, func(t time.Time) bool { return now.Sub(t) > rateOver })
	over := min(now.Sub(at.first), rateOver)
	if over <= 0 {
		return 0
	}
	return float64(len(at.changes)) / over.Seconds()
}

// forget drops the names that have not been seen for a while.
func (h holderChanges) forget(now time.Time) {
	for name, at := range h {
		if now.Sub(at.last) > rateOver {
			delete(h, name)
		}
	}
}
