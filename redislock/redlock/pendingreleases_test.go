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
	return openedAt(t, addrs, "")
}

func openedAt(t *testing.T, addrs []string, params string) *session {
	t.Helper()
	b, err := openURL(t.Context(), &url.URL{Scheme: "redlock", Host: strings.Join(addrs, ","), RawQuery: params})
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

// However an attempt ends, the release of a key of which nothing certain is known is repeated,
// and the release of one that is known to be ours is not.
func TestLostAnswersAreRepeated(t *testing.T) {
	t.Parallel()
	s := opened(t, backends.SharedRedisNodes(t))
	for name, end := range map[string]func(*ticket){
		"the attempt fails": func(k *ticket) { s.mu.Lock(); k.abandonLocked(false); s.mu.Unlock() },
		"the lock is left":  func(k *ticket) { _ = k.Leave(t.Context()) },
		"it comes too late": func(k *ticket) { s.releaseLate(t.Context(), k, ballot{node: 0, vote: unclear}, k.me) },
	} {
		t.Run(name, func(t *testing.T) {
			k := s.Ticket(driver.Request{Name: name, ID: "id", Units: driver.Whole, Capacity: driver.Whole}).(*ticket)
			s.mu.Lock()
			k.keys, _ = s.store.keys(name)
			k.me, k.claims[0], k.claims[1] = "id 0.1 ", maybe, mine
			for i := range s.pending {
				s.pending[i].releasing = true // so that they stay to be looked at
			}
			s.mu.Unlock()
			end(k)
			s.mu.Lock()
			defer s.mu.Unlock()
			if list := s.pending[0].list; len(list) != 1 || list[0].absentRetries < 1 {
				t.Errorf("pending are %+v, want one that is repeated", list)
			}
			if list := s.pending[1].list; len(list) > 0 && list[0].absentRetries > 0 {
				t.Errorf("%+v is certain", list[0])
			}
			for i := range s.pending {
				s.pending[i].list, s.pending[i].releasing = nil, false
			}
		})
	}
}

// A request whose answer was lost with its connection arrives after the request to undo it
// has been answered with "not there". That answer does not count at once. The control is a
// release without repetition: the late key then stays.
func TestReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	nodes := backends.SharedRedisNodes(t)
	s := opened(t, nodes)
	release := func(name string, retries int) (exists func() string) {
		keys, err := s.store.keys(name)
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.addPendingLocked(0, pendingRelease{ticket: &ticket{session: s, keys: keys}, me: "id 0.1 ", since: time.Now(), absentRetries: retries})
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
		n := len(s.pending[0].list)
		for _, d := range s.pending[0].list {
			if d.absentRetries == many {
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

	certain := release("certain release", 0)
	if !comes(func() bool { s.mu.Lock(); defer s.mu.Unlock(); return !s.pending[0].releasing }) {
		t.Fatal("the release is never made")
	}
	set("certain release")
	repeated := release("repeated release", many)
	if !comes(func() bool { return left() == 1 }) {
		t.Fatal("the server has not been asked, or was believed")
	}
	set("repeated release")
	if !comes(func() bool { return repeated() == "0" }) {
		t.Error("what came late stays")
	}
	if certain() != "1" {
		t.Error("the control has gone, too")
	}
	if _, err := nodes[0].Do("DEL", "certain release"); err != nil {
		t.Error(err)
	}
}
