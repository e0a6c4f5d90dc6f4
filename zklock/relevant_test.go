package zklock

import (
	"fmt"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// What a waiter keeps of those ahead decides like all of them: whom to watch, and, when those
// who are watched have left, that the lock is not free as long as others are there.
func TestRelevantAhead(t *testing.T) {
	t.Parallel()
	for n := range 6 {
		for _, me := range []driver.Request{
			{Units: driver.Whole, Capacity: driver.Whole}, {Units: 3, Capacity: 3},
			{Units: 1, Capacity: 3}, {Units: 2, Capacity: 3}, {Units: 1, Capacity: driver.Whole},
		} {
			prefix := DialectCurator.prefix(&driver.Request{ID: "me", Units: me.Units, Capacity: me.Capacity})
			mine := fmt.Sprintf("%s%010d", prefix, n)
			names := []string{mine}
			for i := range n {
				units := int64(1)
				if me.Capacity == driver.Whole && i%2 == 0 {
					units = driver.Whole
				}
				r := driver.Request{ID: fmt.Sprint(i), Units: units, Capacity: me.Capacity}
				names = append(names, fmt.Sprintf("%s%010d", DialectCurator.prefix(&r), i))
			}
			listed := func(whole bool) []driver.Entry {
				ahead, _, _ := DialectCurator.ahead(names, mine, whole)
				return entries(ahead)
			}
			all, kept := listed(false), listed(me.Units == me.Capacity)
			held, blockers := driver.Decide(all, me)
			heldHere, blockersHere := driver.Decide(kept, me)
			if held != heldHere || fmt.Sprint(blockers) != fmt.Sprint(blockersHere) {
				t.Errorf("%d ahead of %d/%d: %t %v; with all %t %v", n, me.Units, me.Capacity, heldHere, blockersHere, held, blockers)
			}
			// Any of those who are watched may leave, and several before anybody looks.
			for some := range 1 << len(blockers) {
				var gone []string
				for i, b := range blockers {
					if some>>i&1 == 1 {
						gone = append(gone, b.ID)
					}
				}
				held, _ := driver.Decide(without(all, gone), me)
				heldHere, _ := driver.Decide(without(kept, gone), me)
				if held != heldHere {
					t.Errorf("%d ahead of %d/%d, and %v left: held %t, with all %t", n, me.Units, me.Capacity, gone, heldHere, held)
				}
			}
			if me.Units == me.Capacity && len(kept) > 2 {
				t.Errorf("%d of %d kept", len(kept), n)
			}
		}
	}
}
