package zklock

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// What a holder has been told of, another machine's list shows at once, although it asks
// another server, which may be behind. Without the sync that List begins with, about one
// look in a hundred failed here.
func TestListIsNotBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("three servers in a short run")
	}
	members := backends.SharedZooKeeperEnsemble(t).Members
	sites := make([]*site, len(members))
	for i, m := range members {
		sites[i] = newSite(t, 10*time.Second, &Options{Root: "/behind"}, m)
	}
	name := uniqueName(t)
	for round := range 60 {
		for i, s := range sites {
			other := sites[(i+1)%len(sites)]
			l := s.lock(t, name)
			if es := other.entries(t, name); len(es) != 1 || es[0].Seq != l.Token() {
				t.Fatalf("round %d: server %d has granted token %d, and another lists %+v", round, i, l.Token(), es)
			}
			release(t, l)
			if es := other.entries(t, name); len(es) != 0 {
				t.Fatalf("round %d: released at server %d, and another lists %+v", round, i, es)
			}
		}
	}
}
