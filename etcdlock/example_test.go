package etcdlock_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/etcdlock"
)

// endpoint is that of an etcd. tests/examples starts one for TestExamples.
var endpoint = cmp.Or(os.Getenv("EXAMPLE_STORE"), "127.0.0.1:2379")

func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "etcd://"+endpoint) // or several, with commas between
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	err = c.Do(ctx, "nightly-report", func(ctx context.Context) error {
		fmt.Println("working")
		return nil
	})
	fmt.Println("released:", err)
}

// A client of yours, and its own prefix.
func ExampleOpen() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close() // hasp does not

	b, err := etcdlock.New(client, &etcdlock.Options{Prefix: "billing/locks/"})
	if err != nil {
		fmt.Println(err)
		return
	}
	c, err := hasp.New(b)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	lease, err := c.Semaphore("exports", 3).Acquire(context.Background(), 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("two of three permits:", lease.Held())
	fmt.Println(lease.Release(context.Background()))
}

// A write that etcd applies only while the lock is held.
func ExampleBackend_StillHeld() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "etcd://"+endpoint)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	client, err := clientv3.NewFromURL(endpoint) // of the same cluster
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	lease, err := c.Mutex("orders/42").Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	b := c.Backend().(*etcdlock.Backend)
	pay := func() {
		resp, err := client.Txn(ctx).If(b.StillHeld(lease)).Then(clientv3.OpPut("orders/42/state", "paid")).Commit()
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("written:", resp.Succeeded)
	}
	pay()
	fmt.Println("released:", lease.Release(ctx))
	pay() // by somebody who has not noticed
}

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
	ExampleOpen()
	ExampleBackend_StillHeld()
}
