package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	for line, want := range map[string]int64{
		"ok 1795269433111580": 1795269433111580, "ok 0": 0, "ok 12 7": 12, "ok 12 x": -1,
		"": -1, "ok": -1, "ok ": -1, "ok 12 ": -1, "ok 1.5": -1, "OK 12": -1, "okay 12": -1, "lost 12": -1, "busy": -1, "error: ok 12": -1,
	} {
		at, ok := parseTime(line)
		if ok != (want >= 0) || ok && at.UnixMicro() != want {
			t.Errorf("%q: %v, %v", line, at, ok)
		}
	}
}

// A client that gives no answer is told apart from one that has ended.
func TestAwait(t *testing.T) {
	t.Parallel()
	start := startFake(t, t.TempDir(), map[bool]string{true: "good", false: "good"})
	holder, err := start("the holder", true, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	waiter, err := start("the waiter", false, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if holder.version != "good" {
		t.Errorf("version %q", holder.version)
	}
	if _, err := holder.do("lock", "a"); err != nil {
		t.Fatal(err)
	}
	if err := waiter.send("lock", "a"); err != nil {
		t.Fatal(err)
	}
	if err := waiter.blocked(settle, holder); err != nil {
		t.Errorf("a waiter that waits: %v", err)
	}
	if _, err := holder.do("unlock"); err != nil {
		t.Fatal(err)
	}
	var v violation
	if err := waiter.blocked(patience, holder); !errors.As(err, &v) || !strings.Contains(err.Error(), "the waiter answers \"ok ") {
		t.Errorf("a waiter that has it: %v", err)
	}
	holder.stop() // which takes effect when one of its threads runs: it may still answer
	holder.resume()
	if line, err := holder.ask("check"); err != nil || line != "held" {
		t.Errorf("after it goes on: %q, %v", line, err)
	}
	holder.stop()
	holder.kill() // stopped or not
	if line, err := holder.await(patience); err == nil || errors.Is(err, errNoAnswer) {
		t.Errorf("a dead client answers %q, %v", line, err)
	}
}

// What saysLost reports of a lease that has ended, and of one that has not.
func TestSaysLost(t *testing.T) {
	for _, c := range []struct {
		kind string
		ttl  time.Duration
		want bool
	}{{"good", time.Millisecond, true}, {"good", time.Hour, false}, {"believer", time.Millisecond, true}, {"blind", time.Millisecond, false}} {
		t.Run(fmt.Sprintf("%s, %s", c.kind, c.ttl), func(t *testing.T) {
			t.Parallel()
			p, err := startFake(t, t.TempDir(), map[bool]string{true: c.kind})("it", true, c.ttl)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.do("lock", "a"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond) // the lease's end
			if got := p.saysLost(); got != c.want {
				t.Errorf("it is %v", got)
			}
		})
	}
}

// tail keeps the end, which has the reason, of a text of any length.
func TestTail(t *testing.T) {
	var l tail
	for i := range 1000 {
		fmt.Fprintf(&l, "line %d\n", i)
	}
	text := l.String()
	if len(text) > 2000 || !strings.HasSuffix(text, "line 998\nline 999") {
		t.Errorf("%d bytes, ending with %q", len(text), text[len(text)-20:])
	}
}
