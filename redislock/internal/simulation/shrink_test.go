package simulation

import (
	"slices"
	"strings"
	"testing"
)

// shrink returns the shortest schedule that it finds with the same violation.
//
// The clients' own jitter is drawn anew in each run, so that a schedule may need more than one to
// show what it shows.
func (s schedule) shrink(t *testing.T, in *interpreter, edits []edit, kind string) schedule {
	shows := func(s schedule) bool {
		for range 3 {
			for _, v := range s.run(t, in, edits, nil) {
				if v.kind == kind {
					return true
				}
			}
		}
		return false
	}
	for size := len(s) / 2; size > 0; {
		removed := false
		for at := 1; at < len(s); {
			shorter := slices.Delete(slices.Clone(s), at, min(at+size, len(s)))
			if shows(shorter) {
				s, removed = shorter, true
				continue
			}
			at += size
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	for i, line := range s { // plainer ones
		for _, plainer := range []string{"pass 0.001", "pass 1", "pass 12"} {
			if strings.HasPrefix(line, "pass ") && line != plainer {
				if other := slices.Concat(s[:i], schedule{plainer}, s[i+1:]); shows(other) {
					s = other
					break
				}
			}
		}
	}
	return s
}
