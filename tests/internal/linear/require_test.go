package linear

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/history"
)

// failures notes what Require reports: on a real T it would fail this test.
type failures struct {
	testing.TB
	texts []string
}

func (f *failures) Helper() {}

func (f *failures) Errorf(format string, args ...any) {
	f.texts = append(f.texts, fmt.Sprintf(format, args...))
}

func TestRequireSavesWhatFailed(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ex := history.Exclusive()
	h := past{got("a", ex, 10, 20, 1).released(90, 95), got("b", ex, 30, 40, 2).released(50, 60)}
	f := &failures{TB: t}
	Require(f, h.history(), everything)
	if len(f.texts) != 1 {
		t.Fatalf("reported %q", f.texts)
	}
	path := regexp.MustCompile(`saved to (\S+)`).FindStringSubmatch(f.texts[0])
	if path == nil || !strings.Contains(f.texts[0], "a [a] exclusive token 1") {
		t.Fatalf("reported %q", f.texts[0])
	}
	back, err := history.Load(path[1])
	if err != nil || !reflect.DeepEqual(back, h.history()) {
		t.Errorf("the saved history is %+v, %v", back, err)
	}

	f = &failures{TB: t}
	Require(f, h[:1].history(), everything)
	if len(f.texts) != 0 {
		t.Errorf("a correct history: %q", f.texts)
	}
	Require(f, past{refused("a", ex, 10, 20, history.Failed)}.history(), Options{})
	if len(f.texts) != 1 || !strings.Contains(f.texts[0], "nothing to check") {
		t.Errorf("a history without a grant: %q", f.texts)
	}
}
