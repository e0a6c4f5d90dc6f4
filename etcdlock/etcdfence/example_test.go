//go:build unix

package etcdfence_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	_ "github.com/hasplock/hasp/etcdlock"
	"github.com/hasplock/hasp/etcdlock/etcdfence"
	"github.com/hasplock/hasp/fencing"
)

// Two holders, one after the other; the first one's late write is refused.
func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{exampleAddr}})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	c, err := hasp.Open(ctx, "etcd://"+exampleAddr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	take := func() *etcdfence.Writer {
		lease, err := c.Mutex("orders/42").Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock()
		w, err := etcdfence.With(ctx, client, lease, nil)
		if err != nil {
			log.Fatal(err)
		}
		return w
	}
	first, second := take(), take()
	_, err = second.Do(ctx, clientv3.OpPut("orders/42", "paid"))
	fmt.Println("second:", err)
	_, err = first.Do(ctx, clientv3.OpPut("orders/42", "cancelled"))
	fmt.Println("first is stale:", errors.Is(err, fencing.ErrStale))
	// Prints:
	// second: <nil>
	// first is stale: true
}

// exampleAddr is that of an etcd. tests/examples starts one for TestExamples.
var exampleAddr = cmp.Or(os.Getenv("EXAMPLE_STORE"), "127.0.0.1:2379")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
}
