package hasp

import (
	"context"
	"testing"
)

// A waiter is used again when its lease has been received, and not when that was lost before: its
// goroutine has still to receive from it.
func TestHandOverWaitersAreReused(t *testing.T) {
	var all localHandOvers
	r := &request{name: "a"}
	join := func() (*localHandOver, *handOverWaiter) { return all.join(context.Background(), r) }
	b, _ := join()
	_, lost := join()
	_, sent := join()
	serve := func(l *Lease) {
		all.mu.Lock()
		defer all.mu.Unlock()
		b.serveLocked(l)
	}
	first, second := new(Lease), new(Lease)
	serve(first)
	b.next() // the lease is lost before it was received: the next goes to the store
	if l := <-sent.turn; l != nil {
		t.Fatal("got a lease, and not the turn at the store")
	}
	_, next := join()
	_, last := join()
	serve(second)
	if _, w := join(); w == lost || w == sent {
		t.Error("a waiter was used again that has not received")
	}
	if l := <-next.turn; l != second {
		t.Error("the lease went elsewhere")
	}
	serve(new(Lease)) // by the one that has received
	if _, w := join(); w != next {
		t.Error("a waiter that has received was not used again")
	}
	if l := <-lost.turn; l != first || len(last.turn) != 1 {
		t.Error("a lease was lost on its way")
	}
}
