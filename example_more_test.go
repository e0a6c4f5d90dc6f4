package hasp_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/hasptest"
	"github.com/hasplock/hasp/memlock"
)

// A transfer holds both accounts, and the price list as a reader. The order in which they
// are named does not matter.
func ExampleLockAll() {
	ctx := context.Background()
	c := open()
	defer c.Close()

	m, err := hasp.LockAll(ctx, c.Mutex("account/7"), c.Mutex("account/3"), c.RWMutex("prices").RLocker())
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, l := range m.Leases() {
		fmt.Println(l.Name())
	}
	fmt.Println(m.Held(), m.Token("account/3") > 0, m.Release(ctx))
	// Output:
	// account/3
	// account/7
	// prices
	// true true <nil>
}

// The same as one call: if one of the locks is lost, the context of the function ends.
func ExampleDoAll() {
	c := open()
	defer c.Close()
	accounts := []hasp.Locker{c.Mutex("account/7"), c.Mutex("account/3")}
	err := hasp.DoAll(context.Background(), accounts, func(ctx context.Context, leases *hasp.MultiLease) error {
		for _, l := range leases.Leases() {
			fmt.Println(l.Name(), leases.Token(l.Name()) > 0)
		}
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// account/3 true
	// account/7 true
	// <nil>
}

// A function that locks what its caller may hold already.
func ExampleReentrant() {
	c := open()
	defer c.Close()
	inner := func(ctx context.Context) error {
		return c.Do(ctx, "orders/42", func(context.Context) error {
			fmt.Println("inside, again")
			return nil
		}, hasp.Reentrant())
	}
	err := c.Do(context.Background(), "orders/42", inner)
	fmt.Println(err)
	// Without the option the same call would wait for itself; it is refused instead.
	err = c.Do(context.Background(), "orders/42", func(ctx context.Context) error {
		return c.Do(ctx, "orders/42", func(context.Context) error { return nil })
	})
	fmt.Println(errors.Is(err, hasp.ErrDeadlock))
	// Output:
	// inside, again
	// <nil>
	// true
}

// Write, then go on reading what was written, with no writer in between.
func ExampleLease_Downgrade() {
	ctx := context.Background()
	c := open()
	defer c.Close()
	config := c.RWMutex("config")

	lease, _ := config.Lock(ctx)
	fmt.Println(lease.Downgrade(ctx))
	reader, err := config.TryRLock(ctx)
	fmt.Println("another reader:", reader.Held(), err)
	_, err = config.TryLock(ctx)
	fmt.Println("a writer:", errors.Is(err, hasp.ErrBusy))
	// Output:
	// <nil>
	// another reader: true <nil>
	// a writer: true
}

// A worker that hangs loses its lock although its process renews.
func ExampleStallAfter() {
	c := open()
	defer c.Close()
	lease, _ := c.Mutex("import", hasp.StallAfter(time.Second)).Lock(context.Background())
	for range 3 {
		time.Sleep(10 * time.Millisecond) // a batch
		lease.Progress()
	}
	fmt.Println("working:", lease.Held())
	<-lease.Context().Done() // the next batch never ends
	var lost *hasp.LostError
	fmt.Println(errors.As(lease.Err(), &lost), lost.Reason)
	// Output:
	// working: true
	// true stalled
}

// Two that wait for each other: the younger gives up, with the whole cycle in its error.
func ExampleFailOnDeadlock() {
	ctx := context.Background()
	store := memlock.New()
	var clients [2]*hasp.Client
	var held [2]*hasp.Lease
	for i, name := range []string{"a", "b"} {
		clients[i], _ = hasp.New(store.Backend(), hasp.WithOwner(hasp.Owner{Program: fmt.Sprint("worker-", i)}))
		defer clients[i].Close()
		held[i], _ = clients[i].Mutex(name).Lock(ctx)
	}
	done := make(chan error)
	want := func(i int, name string) {
		defer held[i].Unlock()
		lease, err := clients[i].Mutex(name, hasp.FailOnDeadlock(50*time.Millisecond)).Lock(held[i].Context())
		if err == nil {
			err = lease.Release(ctx)
		}
		done <- err
	}
	go want(0, "b")
	for waiting := 0; waiting == 0; time.Sleep(time.Millisecond) {
		q, _ := clients[1].Inspect(ctx, "b")
		waiting = len(q.Waiters)
	}
	go want(1, "a") // the younger
	_, cycle, _ := strings.Cut((<-done).Error(), "deadlock: ")
	fmt.Println(cycle)
	fmt.Println(<-done)
	// Output:
	// (worker-1) waits for "a" behind (worker-0); (worker-0) waits for "b" behind (worker-1)
	// <nil>
}

// The holder hears that somebody asks for the lock, and why.
func ExampleRevocable() {
	ctx := context.Background()
	store := memlock.New()
	batch, _ := hasp.New(store.Backend())
	deploy, _ := hasp.New(store.Backend(), hasp.WithOwner(hasp.Owner{User: "ana", Host: "web-3"}))
	defer batch.Close()
	defer deploy.Close()

	asked := make(chan hasp.Owner)
	lease, _ := batch.Mutex("cluster", hasp.Revocable(0, func(by hasp.Owner) { asked <- by })).Lock(ctx)
	go func() {
		by := <-asked
		fmt.Printf("%s asks: %s\n", by, by.Asks)
		_ = lease.Release(ctx) // when it suits
	}()
	next, err := deploy.Mutex("cluster", hasp.AskHolder("a hotfix cannot wait")).Lock(ctx)
	fmt.Println(next.Held(), err)
	// Output:
	// ana@web-3 asks: a hotfix cannot wait
	// true <nil>
}

// A leader that is paused beyond its TTL goes on writing when it wakes up. Its term's token
// is smaller than the new leader's, and the resource refuses it.
func ExampleElection_pausedLeader() {
	ctx := context.Background()
	store := hasptest.New()
	first, _ := hasp.New(store.Backend())
	second, _ := hasp.New(store.Backend())
	defer first.Close()
	defer second.Close()
	var highest uint64 // the resource's own memory
	write := func(t *hasp.Term, what string) {
		if t.Token() < highest {
			fmt.Println("refused:", what)
			return
		}
		highest = t.Token()
		fmt.Println("written:", what)
	}

	old, _ := first.Election("scheduler").Campaign(ctx, []byte("one"))
	write(old, "by the first leader")
	store.Lose("scheduler") // its TTL runs out while it stands still
	next, _ := second.Election("scheduler").Campaign(ctx, []byte("two"))
	write(next, "by the second leader")
	write(old, "by the first, waking up") // it has not looked at old.Held()
	again, _ := second.Election("scheduler").Leader(ctx)
	fmt.Printf("%s leads, the first holds: %t\n", again.Value, old.Held())
	// Output:
	// written: by the first leader
	// written: by the second leader
	// refused: by the first, waking up
	// two leads, the first holds: false
}

// syncLocker is a lock for code that asks for a sync.Locker, and so knows neither contexts nor
// errors. Such code cannot stop its work when the lock is lost: failed, which is told at once, ends
// the program (log.Fatal). It must not return from a Lock that has failed.
type syncLocker struct {
	mutex  *hasp.Mutex
	failed func(error)
	lease  *hasp.Lease // of who has locked, until it unlocks
}

func (s *syncLocker) Lock() {
	lease, err := s.mutex.Lock(context.Background())
	if err != nil {
		s.failed(err)
		panic(err) // to return would be to say that it holds
	}
	s.lease = lease
	context.AfterFunc(lease.Context(), func() {
		if errors.Is(lease.Err(), hasp.ErrLost) {
			s.failed(lease.Err())
		}
	})
}

func (s *syncLocker) Unlock() {
	lease := s.lease // before the next one locks
	s.lease = nil
	lease.Unlock()
}

// A condition that waits for work, under a lock of many machines. Its Wait gives the lock back and
// takes it again.
func Example_syncLocker() {
	c := open()
	defer c.Close()
	fatal := func(err error) { log.Fatal(err) } // lost: the program must not go on
	cond := sync.NewCond(&syncLocker{mutex: c.Mutex("queue"), failed: fatal})

	var work []string
	go func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		work = append(work, "a letter")
		cond.Signal()
	}()
	cond.L.Lock()
	for len(work) == 0 {
		cond.Wait()
	}
	fmt.Println(work)
	cond.L.Unlock()
	// Output: [a letter]
}
