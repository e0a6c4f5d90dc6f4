package hasptest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
)

// work stands for the program under test: it works under a lock until it is stopped, and says why.
func work(ctx context.Context, c *hasp.Client, begun func()) error {
	return c.Do(ctx, "report", func(ctx context.Context) error {
		begun()
		<-ctx.Done()
		return context.Cause(ctx)
	})
}

// reason says how a lock was lost; it is empty if it was not.
func reasonOf(err error) hasp.Reason {
	var lost *hasp.LostError
	if !errors.As(err, &lost) {
		return ""
	}
	return lost.Reason
}

// open is a client for examples; a test has store.Client(t).
func open(s *hasptest.Store, opts ...hasp.Option) *hasp.Client {
	c, err := hasp.New(s.Backend(), opts...)
	if err != nil {
		panic(err)
	}
	return c
}

// Does the program stop when its lock is taken away in the middle?
func ExampleStore_Lose() {
	store := hasptest.New()
	client := open(store)
	defer client.Close()
	err := work(context.Background(), client, func() { store.Lose("report") })
	fmt.Println("stopped:", reasonOf(err))
	// Output: stopped: denied
}

// An operator evicts the holder, by any client of the store.
func ExampleStore_evict() {
	ctx := context.Background()
	store := hasptest.New()
	client, operator := open(store), open(store, hasp.WithOwner(hasp.Owner{User: "ana"}))
	defer client.Close()
	defer operator.Close()
	err := work(ctx, client, func() {
		queue, _ := operator.Inspect(ctx, "report")
		if err := operator.Evict(ctx, "report", queue.Holders[0].ID, "web-3 is dead"); err != nil {
			fmt.Println(err)
		}
	})
	fmt.Println("stopped:", reasonOf(err))
	last, _ := operator.LastEviction(ctx, "report")
	fmt.Println(last.By.User, "-", last.Why)
	// Output:
	// stopped: denied
	// ana - web-3 is dead
}

// The network is gone: the lock is lost before the store may grant it to the next. In a bubble of
// testing/synctest a TTL of ten seconds passes as quickly.
func ExampleStore_Cut() {
	store := hasptest.New()
	client := open(store, hasp.WithTTL(300*time.Millisecond))
	defer client.Close()
	var heal func()
	err := work(context.Background(), client, func() { heal = store.Cut() })
	fmt.Println("stopped:", reasonOf(err))
	heal()
	lease, err := client.Mutex("report").Lock(context.Background())
	fmt.Println("again:", lease.Held(), err)
	// Output:
	// stopped: expired
	// again: true <nil>
}

// The store was restarted without its memory.
func ExampleStore_Forget() {
	store := hasptest.New()
	client := open(store)
	defer client.Close()
	err := work(context.Background(), client, store.Forget)
	fmt.Println("stopped:", reasonOf(err))
	// Output: stopped: session gone
}

// The disk of the store is full: who asks is told at once.
func ExampleStore_Refuse() {
	store := hasptest.New()
	client := open(store)
	defer client.Close()
	store.Refuse("", errors.New("disk full"))
	err := work(context.Background(), client, func() { fmt.Println("it has begun") })
	fmt.Println(errors.Is(err, hasp.ErrRefused), err)
	// Output: true hasp: lock "report" at mem://: refused by the store: disk full
}

// The network is slow: does the program keep its own time-out?
func ExampleStore_Delay() {
	store := hasptest.New()
	client := open(store)
	defer client.Close()
	store.Delay(time.Hour)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err := work(ctx, client, func() { fmt.Println("it has begun") })
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}
