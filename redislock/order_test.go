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
		"queue": "3 3 3 9 1 0",
		"e:one": "1 1 9 h3 s 0 x", "e:two": "3000000001 1 9 h1 s 0 x", "e:three": "9007199254740991 1 9 h2 s 0 x",
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
