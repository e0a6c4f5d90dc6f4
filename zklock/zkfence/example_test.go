//go:build unix

package zkfence_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	_ "github.com/hasplock/hasp/zklock"
	"github.com/hasplock/hasp/zklock/zkfence"
)

// Two holders, one after the other; the first one's late write is refused.
func Example() {
	ctx := context.Background()
	conn, _, err := zk.Connect([]string{exampleAddr}, 10*time.Second, zk.WithLogInfo(false))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	c, err := hasp.Open(ctx, "zookeeper://"+exampleAddr+"?connect_timeout=20s")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	take := func() *zkfence.Writer {
		lease, err := c.Mutex("orders/42").Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock()
		w, err := zkfence.With(ctx, conn, lease, nil)
		if err != nil {
			log.Fatal(err)
		}
		return w
	}
	first, second := take(), take()
	_, err = second.Multi(ctx, &zk.CreateRequest{Path: "/paid", Acl: zk.WorldACL(zk.PermAll)})
	fmt.Println("second:", err)
	_, err = first.Multi(ctx, &zk.DeleteRequest{Path: "/paid", Version: -1})
	fmt.Println("first is stale:", errors.Is(err, fencing.ErrStale))
	// Prints:
	// second: <nil>
	// first is stale: true
}

// exampleAddr is that of a ZooKeeper. tests/examples starts one for TestExamples.
var exampleAddr = cmp.Or(os.Getenv("EXAMPLE_STORE"), "127.0.0.1:2181")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
}
