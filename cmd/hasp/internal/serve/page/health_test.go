package page

import (
	"context"
	"fmt"
	"testing"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/cmd/hasp/internal/serve/access"
	"github.com/hasplock/hasp/memlock"
)

// A deadlock that was found is shown no longer when there are too many names to search again: it
// may be resolved, and the page says that it does not search.
func TestDeadlocksOfBefore(t *testing.T) {
	p, err := New(Options{Store: memlock.New().Backend(), Over: t.Context(), Standing: func() context.Context { return t.Context() }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range deadlockNames + 1 {
		p.live.rows[fmt.Sprint(i)] = &row{}
	}
	p.health.deadlocks, p.health.searched = []hasp.Deadlock{{}}, true
	p.examine(t.Context())
	if r := p.reportFor(access.Everyone()); r.Searched || len(r.Deadlocks) != 0 {
		t.Errorf("shown: %+v", r)
	}
	clear(p.live.rows)
	p.health.at = p.health.at.Add(-healthEvery)
	p.examine(t.Context())
	if r := p.reportFor(access.Everyone()); !r.Searched {
		t.Errorf("with fewer names: %+v", r)
	}
}
