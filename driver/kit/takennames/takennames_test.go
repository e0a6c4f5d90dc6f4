package takennames_test

import (
	"fmt"
	"testing"

	"github.com/hasplock/hasp/driver/kit/takennames"
)

// A name that was taken counts as taken until it was free eight times, and there is no end of names.
func TestNames(t *testing.T) {
	var n takennames.Names
	if n.Has("a") {
		t.Error("a name that was not met")
	}
	n.Met("b", false)
	n.Met("a", true)
	for i := range 8 {
		if !n.Has("a") || n.Has("b") {
			t.Errorf("after %d times free: a %t, b %t", i, n.Has("a"), n.Has("b"))
		}
		n.Met("a", false)
	}
	if n.Has("a") {
		t.Error("it never counts as free again")
	}
	for i := range 20_001 {
		n.Met(fmt.Sprint(i), true)
	}
	if !n.Has("20000") || n.Has("0") {
		t.Error("the names are not bounded, or the last one was forgotten")
	}
}
