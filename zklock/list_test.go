package zklock

import (
	"testing"
	"time"

	"github.com/hasplock/hasp/internal/backends"
)

// siteAtEach returns a client for each of three servers.
func siteAtEach(t *testing.T) (sites []*site) {
	if testing.Short() {
		t.Skip("three servers in a short run")
	}
	for _, m := range backends.SharedZooKeeperEnsemble(t).Members {
		sites = append(sites, newSite(t, 10*time.Second, &Options{Root: "/behind"}, m))
	}
	return sites
}

// What a holder has been told of, another machine's list shows at once, although it asks
// another server, which may be behind. Without the sync that List begins with, about one
// look in a hundred failed here.
func TestListIsNotBehind(t *testing.T) {
	sites, name := siteAtEach(t), uniqueName(t)
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

// Nor does a try see a holder who has been told that he has left. Without the second look
// about one try in forty was refused here.
func TestTryIsNotBehind(t *testing.T) {
	sites, name := siteAtEach(t), uniqueName(t)
	for round := range 200 {
		l, err := sites[round%len(sites)].Mutex(name).TryLock(t.Context())
		if err != nil {
			t.Fatalf("try %d of a free lock: %v", round, err)
		}
		release(t, l)
	}
}
