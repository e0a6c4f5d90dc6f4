package fencing_test

import (
	"context"
	"fmt"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/memlock"
)

// A resource in memory, and two holders of its lock, one after the other. The first one's
// write comes late, and is refused.
func ExampleFence() {
	ctx := context.Background()
	locks, err := hasp.New(memlock.New().Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer locks.Close()

	fence, state := fencing.NewFence("orders/42", 0), "new"
	write := func(w *fencing.Writer, s string) error {
		return w.Do(func() error { state = s; return nil })
	}
	take := func() *fencing.Writer {
		lease, err := locks.Mutex("orders/42").Lock(ctx)
		if err != nil {
			fmt.Println(err)
			return nil
		}
		defer lease.Unlock()
		w, err := fence.With(lease) // first, before anything is read
		if err != nil {
			fmt.Println(err)
		}
		return w
	}
	first, second := take(), take()
	fmt.Println(write(second, "paid"))
	fmt.Println(write(first, "cancelled"))
	fmt.Println(state)
	// Output:
	// <nil>
	// token 1 of lock "orders/42" is stale, 2 has been here: the lock was lost and nothing was written; lock again before the next write
	// paid
}
