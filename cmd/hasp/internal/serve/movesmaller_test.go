package serve_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/testkit"
)

// A writer becomes a reader, and the server that has done it goes away before it has said so. The
// session moves, and the next server finds the lock as the reader's that it is by now, whichever of
// its answers are lost.
func TestMoveOfASmallerLock(t *testing.T) {
	for what, lost := range map[string][]string{
		"the answer to the downgrade is lost":   {"/downgrade"},
		"and those of the first adoptions":      {"/downgrade", "/1/adopt", "/2/adopt"},
		"and that of the second adoption":       {"/downgrade", "/2/adopt"},
		"no downgrade, and an adoption is lost": {"/1/adopt"},
	} {
		t.Run(what, func(t *testing.T) {
			p := newPair(t, nil, "")
			a, held := p.lock(t, "a")
			var lose []func(q *http.Request) bool
			for _, path := range lost {
				lose = append(lose, func(q *http.Request) bool { return strings.HasSuffix(q.URL.Path, path) })
			}
			units := int64(driver.Whole)
			p.front.lose(lose...)
			if lost[0] == "/downgrade" {
				units = 1
				if err := a.(driver.Downgrader).Downgrade(t.Context(), 1); err == nil || errors.Is(err, driver.ErrGone) {
					t.Fatalf("the answer was not lost: %v", err)
				}
			}
			p.front.lead(p.addrs[1])
			p.keepAlive(t)
			p.wantGone(t)
			if n := p.front.toLose(); n > 0 {
				t.Errorf("%d answers were not lost: this has shown little", n)
			}
			if e := p.entries(t, "a"); len(e) != 1 || e[0].Seq != held.Token || e[0].Units != units {
				t.Errorf("the store has %+v, want %d units", e, units)
			}
			if err := a.(driver.Downgrader).Downgrade(t.Context(), 1); err != nil {
				t.Errorf("asked again: %v", err)
			}
			if v, err := a.Enqueue(t.Context()); err != nil || !v.Held || v.Token != held.Token {
				t.Errorf("%+v, %v", v, err)
			}
			p.front.lead(p.addrs[0]) // and once more: its units are known by now
			p.keepAlive(t)
			p.wantGone(t)
			if err := a.Leave(t.Context()); err != nil {
				t.Errorf("release: %v", err)
			}
			if e := p.entries(t, "a"); len(e) != 0 {
				t.Errorf("left behind: %+v", e)
			}
		})
	}
}

// A downgrade is under way at the server that the session leaves. It is done there, or not at all,
// and holds at the next one.
func TestDowngradeWhileItMoves(t *testing.T) {
	p := newPair(t, nil, "")
	a, held := p.lock(t, "a")
	late, asked := make(chan struct{}), make(chan struct{}, 10)
	p.front.split(func(q *http.Request) (string, <-chan struct{}) {
		if strings.HasSuffix(q.URL.Path, "/downgrade") && p.front.to.Load().Host == p.addrs[0] {
			asked <- struct{}{}
			return "", late
		}
		return "", nil
	})
	done := make(chan error, 1)
	go func() { done <- a.(driver.Downgrader).Downgrade(t.Context(), 1) }()
	testkit.Await(t, "the request", asked)
	testkit.Eventually(t, "the downgrade", func() bool { return p.entries(t, "a")[0].Units == 1 })
	p.front.lead(p.addrs[1])
	p.keepAlive(t)
	close(late)
	if err := testkit.Await(t, "the answer", done); err != nil {
		t.Errorf("downgrade: %v", err)
	}
	p.wantGone(t)
	if e := p.entries(t, "a"); len(e) != 1 || e[0].Seq != held.Token || e[0].Units != 1 {
		t.Errorf("the store has %+v", e)
	}
}
