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

// A request whose answer was lost with its connection arrives after the request to undo it
// has been answered with "not there". That answer is not believed at once. The control is a
// debt without doubts: what arrives late then stays.
func TestDoubtedDebt(t *testing.T) {
	nodes := backends.SharedRedisNodes(t)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr)
	}
	b, err := openURL(t.Context(), &url.URL{Scheme: "redlock", Host: strings.Join(addrs, ",")})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	opened, _, err := b.Open(t.Context(), driver.SessionOptions{TTL: time.Minute, Gone: func(string, error) {}})
	if err != nil {
		t.Fatal(err)
	}
	s := opened.(*session)
	defer s.Close(context.Background())
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
