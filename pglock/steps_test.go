package pglock

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"testing"
)

// released are the hashes of the statements of each step. There are databases that have them: a
// change is another step, and this list gets another line.
var released = []string{"7113c272e73f4a09"}

// A step that was changed under its number leaves clients whose tables and functions do not fit, and
// no version tells that. Comments may change.
func TestStepsStay(t *testing.T) {
	if len(migrations) != len(released) {
		t.Fatalf("%d steps, and %d are known", len(migrations), len(released))
	}
	for i, step := range migrations {
		statements := strings.Join(strings.Fields(regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(step, "")), " ")
		sum := sha256.Sum256([]byte(statements))
		if got := hex.EncodeToString(sum[:8]); got != released[i] {
			t.Errorf("the statements of version %d have changed (%s, they were %s): make another step", oldest+i, got, released[i])
		}
	}
}
