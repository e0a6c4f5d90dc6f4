//go:build unix

package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/testkit"
)

// Rule tests S3 as a single caller sees it: which tokens pass, which are refused, and with which error.
// The cells of the target must be empty.
func Rule(t *testing.T, open Opener, target string) {
	r := opened(t, open, target)
	t.Run("tokens", func(t *testing.T) { tokens(t, r) })
	t.Run("first", func(t *testing.T) { first(t, r) })
	t.Run("names", func(t *testing.T) { names(t, r) })
	t.Run("input", func(t *testing.T) { input(t, r) })
}

// opened opens a target as often as a busy machine needs.
func opened(t *testing.T, open Opener, target string) Resource {
	t.Helper()
	r, err := testkit.Again(testkit.Context(t), func() (Resource, error) { return open(t.Context(), target) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tokens(t *testing.T, r Resource) {
	const name = "orders/42"
	// One after the other: the cell and the greatest token carry over.
	for _, step := range []struct {
		token uint64
		write string // "": only advance
		seen  uint64 // greater than token: refused
	}{
		{5, "first", 5},
		{5, "an equal token writes again", 5},
		{4, "late", 5},
		{4, "", 5},
		{9, "", 9}, // nothing written, but the older one is refused from here on
		{5, "late", 9},
		{9, "the advanced one", 9},
		// Beyond the precision of a double, the number type of Lua.
		{1<<53 + 1, "large", 1<<53 + 1},
		{1 << 53, "late by one", 1<<53 + 1},
		{math.MaxInt64 - 1, "nearly the largest", math.MaxInt64 - 1},
		{math.MaxInt64, "the largest", math.MaxInt64},
		{math.MaxInt64 - 1, "late by one", math.MaxInt64},
		// Fewer digits, but greater as text.
		{99, "late", math.MaxInt64},
	} {
		before := read(t, r, name)
		var err error
		if step.write == "" {
			err = r.Advance(t.Context(), name, step.token)
		} else {
			err = r.Write(t.Context(), name, step.token, step.write)
		}
		want := before
		if step.seen > step.token {
			wantStale(t, err, fencing.StaleError{Name: name, Token: step.token, Seen: step.seen})
		} else if err != nil {
			t.Fatalf("token %d: %v", step.token, err)
		} else if step.write != "" {
			want = step.write
		}
		if got := read(t, r, name); got != want {
			t.Fatalf("after token %d the cell is %q, want %q", step.token, got, want)
		}
	}
}

// first lets an older holder write between a newer one's read and its write. The newer one has advanced,
// so that write is refused. In the control it has forgotten to: the write is accepted, and lost.
func first(t *testing.T, r Resource) {
	for _, forgotten := range []bool{false, true} {
		name := fmt.Sprintf("first/forgotten=%t", forgotten)
		if err := r.Write(t.Context(), name, 5, "old"); err != nil {
			t.Fatal(err)
		}
		if !forgotten {
			if err := r.Advance(t.Context(), name, 6); err != nil {
				t.Fatal(err)
			}
		}
		was := read(t, r, name)
		late := r.Write(t.Context(), name, 5, "late")
		if err := r.Write(t.Context(), name, 6, was+" and new"); err != nil {
			t.Fatal(err)
		}
		if got := read(t, r, name); got != "old and new" {
			t.Errorf("the cell is %q", got)
		}
		if !forgotten {
			wantStale(t, late, fencing.StaleError{Name: name, Token: 5, Seen: 6})
		} else if late != nil {
			t.Errorf("control: without the advance the late write fails, too (%v): this test would not notice a With that does not advance", late)
		}
	}
}

func wantStale(t *testing.T, err error, want fencing.StaleError) {
	t.Helper()
	var stale *fencing.StaleError
	if !errors.As(err, &stale) || !errors.Is(err, fencing.ErrStale) || *stale != want {
		t.Fatalf("got %v, want %v", err, &want)
	}
}

func read(t *testing.T, r Resource, name string) string {
	t.Helper()
	got, err := r.Read(t.Context(), name)
	if err != nil {
		t.Fatalf("read %q: %v", name, err)
	}
	return got
}

// names are independent, however they look.
func names(t *testing.T, r Resource) {
	odd := []string{
		"a", "A", "a/", "a/b", "a%2Fb", "a%2fb", "../x", ".", "..", "{x}", "a}b{c", " x", "x ", "x", "x'; DROP TABLE hasp_fence; --",
		"\\", `"`, "ä", "a\u0308", "Ä", "\t", "\n", "lock-0000000001", strings.Repeat("n", 512), strings.Repeat("n", 511) + "m",
	}
	for i, name := range odd {
		if err := r.Advance(t.Context(), name, uint64(1000+i)); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	for i, name := range odd {
		token := uint64(1000 + i)
		wantStale(t, r.Advance(t.Context(), name, token-1), fencing.StaleError{Name: name, Token: token - 1, Seen: token})
	}
}

// invalid input is refused, and nothing is written.
func input(t *testing.T, r Resource) {
	const name = "input"
	if err := r.Write(t.Context(), name, 7, "before"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		token uint64
	}{
		{name, 0}, {name, math.MaxInt64 + 1}, {name, math.MaxUint64},
		{"", 8}, {strings.Repeat("n", 513), 8}, {"\xff", 8}, {"a\x00b", 8},
	} {
		if err := r.Advance(t.Context(), c.name, c.token); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("advance %q to %d: %v", c.name, c.token, err)
		}
		if err := r.Write(t.Context(), c.name, c.token, "after"); !errors.Is(err, fencing.ErrInvalid) {
			t.Errorf("write %q with %d: %v", c.name, c.token, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Advance(ctx, name, 8); !errors.Is(err, context.Canceled) {
		t.Errorf("advance with a cancelled context: %v", err)
	}
	if err := r.Write(ctx, name, 8, "after"); !errors.Is(err, context.Canceled) {
		t.Errorf("write with a cancelled context: %v", err)
	}
	if got := read(t, r, name); got != "before" {
		t.Errorf("the cell is %q", got)
	}
	if err := r.Write(t.Context(), name, 7, "still"); err != nil { // 8 was never seen here
		t.Errorf("the token is refused after that: %v", err)
	}
}
