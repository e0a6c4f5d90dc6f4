package redislock

import (
	"slices"
	"testing"

	"github.com/hasplock/hasp/driver"
)

// Entries are in the order of their Seqs, however far apart. (With an int of 32 bits the
// difference was truncated.)
func TestListOrder(t *testing.T) {
	list, err := parseEntries("a", "5", map[string]string{
		"hasp2": "9007199254740991 9 3 3 3 9 1 0 0 0",
		"h:3":   "one 1 9 1 3 s 0 x", "h:1": "two 3000000001 9 1 3 s 0 x", "h:2": "three 9007199254740991 9 1 3 s 0 x",
	})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	if !slices.Equal(ids, []string{"one", "two", "three"}) || !slices.IsSortedFunc(list, func(a, b driver.Entry) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	}) {
		t.Errorf("%q", ids)
	}
}
