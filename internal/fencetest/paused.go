//go:build unix

package fencetest

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/hasplock/hasp/fencing"
)

// Paused tests the purpose of fences, with processes, signals and a lock on a real store:
//
//	first holds the lock                        second waits for it
//	first writes "first", is about to write again
//	first is stopped, beyond its TTL
//	                                            second holds, advances, writes "second"
//	first continues and writes "late"
//
// With the fence the last step is refused and the cell says "second". Without, the same steps
// leave "late" there.
func Paused(t *testing.T, open Opener, store, target string) {
	const ttl = 2 * time.Second
	for _, fenced := range []bool{true, false} {
		write, what := "write", "fenced"
		if !fenced {
			write, what = "overwrite", "unfenced"
		}
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			k := task{Store: store, TTL: ttl, Name: "paused/" + rand.Text() + "/" + what, Target: target}
			r := opened(t, open, target)
			first := start(t, k)
			early := first.hear()
			first.must(write, "first")
			first.stop()

			second := start(t, k)
			late := second.hear() // it holds: the first one's TTL has ended
			if late.Token <= early.Token {
				t.Fatalf("the second token is %d, the first was %d", late.Token, early.Token)
			}
			if fenced {
				second.must("advance", "")
			}
			second.must(write, "second")

			first.resume()
			got := first.do(write, "late")
			if got.Held {
				t.Error("the first still believes that it holds the lock")
			}
			if !fenced {
				if cell := read(t, r, k.Name); got.Err != "" || cell != "late" {
					t.Errorf("control: the late write said %q and left %q: this test would not notice a fence that does nothing", got.Err, cell)
				}
				return
			}
			want := fencing.StaleError{Name: k.Name, Token: early.Token, Seen: late.Token}
			if got.Stale == nil || *got.Stale != want {
				t.Errorf("the late write: %q, want %v", got.Err, &want)
			}
			if cell := read(t, r, k.Name); cell != "second" {
				t.Errorf("the cell is %q", cell)
			}
			second.must(write, "third")
		})
	}
}
