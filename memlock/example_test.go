package memlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

// Two clients of one store contend like two machines.
func Example() {
	ctx := context.Background()
	store := memlock.New()
	a, err := hasp.New(store.Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer a.Close()
	b, err := hasp.New(store.Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()

	lease, err := a.Mutex("orders/42").Lock(ctx)
	fmt.Println(lease.Held(), err)
	_, err = b.Mutex("orders/42").TryLock(ctx)
	fmt.Println(errors.Is(err, hasp.ErrBusy))
	fmt.Println(lease.Release(ctx))
	next, err := b.Mutex("orders/42").TryLock(ctx)
	fmt.Println(next.Token() > lease.Token(), err)
	// Output:
	// true <nil>
	// true
	// <nil>
	// true <nil>
}

// What a program does when it loses its lock can be tested without waiting: in a bubble of
// testing/synctest leases run out in no time, and the store breaks on request.
func ExampleStore_Lose() {
	store := memlock.New()
	c, err := hasp.New(store.Backend())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	err = c.Do(context.Background(), "report", func(ctx context.Context) error {
		store.Lose("report") // the program under test would be here
		<-ctx.Done()
		return context.Cause(ctx)
	})
	var lost *hasp.LostError
	fmt.Println(errors.As(err, &lost) && lost.Reason == hasp.ReasonDenied)
	// Output: true
}
