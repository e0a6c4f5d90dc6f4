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
