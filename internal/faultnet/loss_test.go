package faultnet

import (
	"math"
	"slices"
	"testing"
	"time"
)

func mustClose(t *testing.T, cut <-chan struct{}) {
	t.Helper()
	select {
	case <-cut:
	case <-time.After(limit):
		t.Fatal("the loss was never carried out")
	}
}

func TestLostAnswerOfAMatchingRequest(t *testing.T) {
	l := newLab(t)
	c, other := l.dial(t), l.dial(t)
	c.ask("ping")
	cut := l.Lose(Down, 1, Contains("acquire"))
	c.ask("ping")
	other.ask("ping")
	c.send("acquire")
	c.mustEndWith(errFIN)
	mustClose(t, cut)
	if got := l.server.asked(); got[len(got)-1] != "acquire" {
		t.Fatalf("the server was asked %q: the request must have arrived", got)
	}
	other.ask("acquire") // it strikes once, and only its connection
	l.dial(t).ask("acquire")
}

func TestLostAnswersThenTheCut(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("0")
	cut := l.Lose(Down, 3, nil)
	for n, q := range []string{"1", "2"} {
		c.send(q)
		l.until(t, "its answer is lost", func(s Stats) bool { return s.Down.Lost == int64(5*(n+1)) })
	}
	select {
	case <-cut:
		t.Fatal("cut after two of three answers")
	default:
	}
	c.mustStaySilent()
	c.send("3")
	c.mustEndWith(errFIN)
	mustClose(t, cut)
	if got := l.server.asked(); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Fatalf("the server was asked %q", got)
	}
}

func TestLostRequest(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	c.ask("ping")
	cut := l.Lose(Up, 1, Contains("acquire"))
	c.send("acquire")
	c.mustEndWith(errFIN)
	mustClose(t, cut)
	l.server.waitFor(t, "the end", func() bool { return len(l.server.ends) == 1 })
	if got := l.server.asked(); !slices.Equal(got, []string{"ping"}) {
		t.Fatalf("the server was asked %q: the request must not arrive", got)
	}
}

func TestLostAnswerWithoutACut(t *testing.T) {
	l := newLab(t)
	c := l.dial(t)
	cut := l.Lose(Down, math.MaxInt, nil)
	c.send("x")
	l.until(t, "the answer is lost", func(s Stats) bool { return s.Down.Lost == 5 })
	c.mustStaySilent()
	c.Close()
	mustClose(t, cut) // the client gave up
	l.server.waitFor(t, "the client's end", func() bool { return slices.Equal(l.server.ends, []error{errFIN}) })
}

func TestTwoLossesStrikeTwoConnections(t *testing.T) {
	l := newLab(t)
	first, second := l.Lose(Down, math.MaxInt, nil), l.Lose(Down, 1, nil)
	a, b := l.dial(t), l.dial(t)
	a.send("1")
	l.until(t, "the first has struck", func(s Stats) bool { return s.Down.Lost == 5 })
	a.send("2") // swallowed by the first loss; the second must wait for another connection
	l.until(t, "it still swallows", func(s Stats) bool { return s.Down.Lost == 10 })
	b.send("3")
	b.mustEndWith(errFIN)
	mustClose(t, second)
	select {
	case <-first:
		t.Fatal("the first connection was cut")
	default:
	}
}

func TestOnlyRequestsAreMatched(t *testing.T) {
	l := newLab(t)
	l.Lose(Down, 1, Contains("re:x"))
	c := l.dial(t)
	c.ask("x")
	c.ask("an answer matched, and nothing happened")
	c.send("re:x")
	c.mustEndWith(errFIN)
}

func TestHealDisarms(t *testing.T) {
	l := newLab(t)
	l.Lose(Down, 1, nil)
	l.Lose(Up, 1, nil)
	l.Heal()
	l.dial(t).ask("nothing is lost")
}
