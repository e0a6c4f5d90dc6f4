package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/memlock"
)

func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "mem://example") // in earnest: file:///var/lib/hasp
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	lease, err := c.Mutex("orders/42").Lock(ctx) // ctx bounds the waiting
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", lease.Held(), "token:", lease.Token())
	// Work with lease.Context(), and hand lease.Token() to the resource.
	if err := lease.Release(ctx); err != nil {
		fmt.Println("not confirmed:", err)
	}
	fmt.Println("held:", lease.Held())
	// Output:
	// held: true token: 1
	// held: false
}

func ExampleClient_Do() {
	c := open()
	defer c.Close()
	err := c.Do(context.Background(), "nightly-report", func(ctx context.Context) error {
		fmt.Println("writing the report") // stop when ctx ends: the lock may be lost
		return nil
	})
	fmt.Println(err)
	// Output:
	// writing the report
	// <nil>
}

// Under Do the lease comes with the context: for the token that the resource checks.
func ExampleLeaseFrom() {
	c := open()
	defer c.Close()
	save := func(ctx context.Context, text string) error {
		lease, _ := hasp.LeaseFrom(ctx) // the innermost lock that ctx holds
		fmt.Printf("%s under %s, token %d\n", text, lease.Name(), lease.Token())
		return ctx.Err()
	}
	err := c.Do(context.Background(), "orders/42", func(ctx context.Context) error {
		return save(ctx, "paid")
	})
	fmt.Println(err)
	// Output:
	// paid under orders/42, token 1
	// <nil>
}

// A server holds a lock for as long as it runs. Each request works under it, and ends by itself
// too.
func ExampleLease_Bind() {
	c := open()
	lease, err := c.Mutex("primary").Lock(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	gone := errors.New("the browser is closed")
	request, cancel := context.WithCancelCause(context.Background())
	first, second := lease.Bind(request), lease.Bind(context.Background())
	cancel(gone)
	<-first.Done()
	fmt.Println(context.Cause(first), "- held:", lease.Held(), second.Err())
	c.Close() // takes the lock away
	<-second.Done()
	fmt.Println(errors.Is(context.Cause(second), hasp.ErrLost))
	// Output:
	// the browser is closed - held: true <nil>
	// true
}

func ExampleMutex_TryLock() {
	ctx := context.Background()
	store := memlock.New()
	one, _ := hasp.New(store.Backend(), hasp.WithOwner(hasp.Owner{User: "ana", Host: "web-3", PID: 4121, Program: "deploy"}))
	two, _ := hasp.New(store.Backend())
	defer one.Close()
	defer two.Close()

	lease, _ := one.Mutex("deploy").Lock(ctx)
	_, err := two.Mutex("deploy").TryLock(ctx)
	fmt.Println(errors.Is(err, hasp.ErrBusy))
	var busy *hasp.BusyError
	if errors.As(err, &busy) {
		fmt.Println(busy.Holder)
	}
	fmt.Println(lease.Release(ctx))
	// Output:
	// true
	// ana@web-3 pid 4121 (deploy)
	// <nil>
}

func ExampleRWMutex() {
	ctx := context.Background()
	c := open()
	defer c.Close()
	m := c.RWMutex("config")

	a, _ := m.RLock(ctx)
	b, _ := m.RLock(ctx) // readers together
	_, err := m.TryLock(ctx)
	fmt.Println("writer beside readers:", errors.Is(err, hasp.ErrBusy))
	fmt.Println(a.Release(ctx), b.Release(ctx))
	w, err := m.TryLock(ctx)
	fmt.Println("writer alone:", w.Held(), err)
	// Output:
	// writer beside readers: true
	// <nil> <nil>
	// writer alone: true <nil>
}

func ExampleSemaphore() {
	ctx := context.Background()
	c := open()
	defer c.Close()
	s := c.Semaphore("gpu", 4)

	big, _ := s.Acquire(ctx, 3)
	small, _ := s.Acquire(ctx, 1)
	_, err := s.TryAcquire(ctx, 1)
	fmt.Println("a fifth permit:", errors.Is(err, hasp.ErrBusy))
	_, err = c.Semaphore("gpu", 5).TryAcquire(ctx, 1)
	fmt.Println("of another size:", errors.Is(err, hasp.ErrMismatch))
	fmt.Println(big.Release(ctx), small.Release(ctx))
	// Output:
	// a fifth permit: true
	// of another size: true
	// <nil> <nil>
}

// Three candidates take turns; an observer follows.
func ExampleElection() {
	ctx := context.Background()
	store := memlock.New()
	watching, _ := hasp.New(store.Backend())
	defer watching.Close()

	for _, name := range []string{"ana", "bo", "cy"} {
		candidate, _ := hasp.New(store.Backend())
		term, err := candidate.Election("scheduler").Campaign(ctx, []byte(name))
		if err != nil {
			fmt.Println(err)
			return
		}
		leader, _ := watching.Election("scheduler").Leader(ctx)
		fmt.Printf("term %d: %s leads\n", leader.Token, leader.Value)
		_ = term.Release(ctx)
		_ = candidate.Close()
	}
	for leader, err := range watching.Election("scheduler").Observe(ctx) {
		fmt.Printf("now: %q %v\n", leader.Value, err)
		break
	}
	// Output:
	// term 1: ana leads
	// term 2: bo leads
	// term 3: cy leads
	// now: "" <nil>
}

// The pattern of every leader, with a follower beside it. Run campaigns, leads and campaigns again
// until its context ends, by SIGTERM say; the follower is told of each leader.
func ExampleElection_Run() {
	store := memlock.New()
	candidate, _ := hasp.New(store.Backend())
	follower, _ := hasp.New(store.Backend())
	defer candidate.Close()
	defer follower.Close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	done := make(chan error)
	go func() {
		done <- candidate.Election("scheduler").Run(ctx, []byte("10.0.0.1:8080"), func(ctx context.Context, term *hasp.Term) error {
			// Lead here: start what only the leader does, with ctx, and hand term.Token() to what
			// is written.
			<-ctx.Done() // asked to stop, or the lead is lost
			return nil   // when all that was started has ended
		})
	}()
	for leader, err := range follower.Election("scheduler").Observe(context.Background()) {
		switch {
		case err != nil:
			fmt.Println(err) // Observe goes on when the store is back
			continue
		case leader.ID == "" && ctx.Err() == nil:
			continue // no leader yet
		case leader.ID != "":
			fmt.Printf("%s leads\n", leader.Value)
			stop()
			continue
		}
		fmt.Println("no leader")
		break
	}
	fmt.Println(errors.Is(<-done, context.Canceled))
	// Output:
	// 10.0.0.1:8080 leads
	// no leader
	// true
}

// What a token is for: the first holder is taken for dead, the second gets the lock, and
// the first writes all the same. Only the resource can refuse that write.
func ExampleLease_Token() {
	ctx := context.Background()
	store := memlock.New()
	one, _ := hasp.New(store.Backend())
	two, _ := hasp.New(store.Backend())
	defer two.Close()

	var highest uint64 // the resource's own memory
	write := func(token uint64, what string) {
		if token < highest {
			fmt.Println("refused:", what)
			return
		}
		highest = token
		fmt.Println("written:", what)
	}

	first, _ := one.Mutex("file").Lock(ctx)
	_ = one.Close() // as good as dead
	<-first.Context().Done()
	second, _ := two.Mutex("file").Lock(ctx)
	write(second.Token(), "the second's")
	write(first.Token(), "the first's, late")
	// Output:
	// written: the second's
	// refused: the first's, late
}

func ExampleLease_Context() {
	c := open()
	lease, _ := c.Mutex("a").Lock(context.Background())
	go func() {
		time.Sleep(time.Millisecond)
		c.Close()
	}()
	<-lease.Context().Done()
	var lost *hasp.LostError
	fmt.Println(errors.As(lease.Err(), &lost), lost.Reason)
	fmt.Println(errors.Is(context.Cause(lease.Context()), hasp.ErrLost))
	// Output:
	// true closed
	// true
}

func open() *hasp.Client {
	c, err := hasp.New(memlock.New().Backend())
	if err != nil {
		panic(err)
	}
	return c
}
