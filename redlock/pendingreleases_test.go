package redlock

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hasplock/hasp/driver"
	"github.com/hasplock/hasp/internal/backends"
)

// opened is a session on real servers.
func opened(t *testing.T, nodes []*backends.Redis) *session {
	t.Helper()
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	b, err := openURL(t.Context(), &url.URL{Scheme: "redlock", Host: strings.Join(addrs, ",")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	s, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(context.Background()) })
	return s.(*session)
}

// Whatever ends an attempt, the debt for a key of which nothing certain is known is doubted,
// and the debt for one that is known to be ours is not.
func TestLostAnswersAreDoubted(t *testing.T) {
	t.Parallel()
	s := opened(t, backends.SharedRedisNodes(t))
	for name, end := range map[string]func(*ticket){
		"the attempt fails": func(k *ticket) { s.mu.Lock(); k.giveUpLocked(false); s.mu.Unlock() },
		"the lock is left":  func(k *ticket) { _ = k.Leave(t.Context()) },
		"it comes too late": func(k *ticket) { s.giveBack(t.Context(), k, ballot{node: 0, vote: unclear}, k.me) },
	} {
		t.Run(name, func(t *testing.T) {
			k := s.Ticket(driver.Request{Name: name, ID: "id", Units: driver.Whole, Capacity: driver.Whole}).(*ticket)
			s.mu.Lock()
			k.keys, _ = s.store.keys(name)
			k.me, k.claims[0], k.claims[1] = "id 0.1 ", maybe, mine
			for i := range s.debts {
				s.debts[i].paying = true // so that they stay to be looked at
			}
			s.mu.Unlock()
			end(k)
			s.mu.Lock()
			defer s.mu.Unlock()
			if list := s.debts[0].list; len(list) != 1 || list[0].doubts < 1 {
				t.Errorf("owed are %+v, want one that is doubted", list)
			}
			if list := s.debts[1].list; len(list) > 0 && list[0].doubts > 0 {
				t.Errorf("%+v is certain", list[0])
			}
			for i := range s.debts {
				s.debts[i].list, s.debts[i].paying = nil, false
			}
		})
	}
}

// A request whose answer was lost with its connection arrives after the request to undo it
// has been answered with "not there". That answer is not believed at once. The control is a
// debt without doubts: what arrives late then stays.
func TestDoubtedDebt(t *testing.T) {
	t.Parallel()
	nodes := backends.SharedRedisNodes(t)
	s := opened(t, nodes)
	owe := func(name string, doubts int) (exists func() string) {
		keys, err := s.store.keys(name)
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.oweLocked(0, debt{keys: keys, me: "id 0.1 ", since: time.Now(), doubts: doubts})
		s.mu.Unlock()
		return func() string {
			out, err := nodes[0].Do("EXISTS", name)
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
	}
	set := func(name string) {
		if _, err := nodes[0].Do("SET", name, "id 0.1 1: me", "PX", "60000"); err != nil {
			t.Fatal(err)
		}
	}
	const many = 1 << 20 // so that the test need not hurry
	left := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := len(s.debts[0].list)
		for _, d := range s.debts[0].list {
			if d.doubts == many {
				n++ // not answered yet
			}
		}
		return n
	}
	comes := func(ok func() bool) bool {
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return false
			}
		}
		return true
	}

	certain := owe("certain debt", 0)
	if !comes(func() bool { s.mu.Lock(); defer s.mu.Unlock(); return !s.debts[0].paying }) {
		t.Fatal("the debt is never paid")
	}
	set("certain debt")
	doubted := owe("doubted debt", many)
	if !comes(func() bool { return left() == 1 }) {
		t.Fatal("the server has not been asked, or was believed")
	}
	set("doubted debt")
	if !comes(func() bool { return doubted() == "0" }) {
		t.Error("what came late stays")
	}
	if certain() != "1" {
		t.Error("the control has gone, too")
	}
	if _, err := nodes[0].Do("DEL", "certain debt"); err != nil {
		t.Error(err)
	}
}
