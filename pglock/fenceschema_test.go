package pglock

import (
	"testing"

	"github.com/hasplock/hasp/fencing/sqlfence"
)

// The table of fences that the schema has is the one that sqlfence makes.
func TestFenceSchema(t *testing.T) {
	fence, err := sqlfence.New(sqlfence.PostgreSQL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if fenceSchema != fence.Schema() {
		t.Errorf("made is %s, and sqlfence has %s", fenceSchema, fence.Schema())
	}
}
