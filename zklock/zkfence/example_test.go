//go:build unix

package zkfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
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
	c, err := hasp.Open(ctx, exampleStore)
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

// exampleAddr is a server's address, exampleStore its locks; TestExample puts its own there.
var (
	exampleAddr  = "127.0.0.1:2181"
	exampleStore = "zookeeper://" + exampleAddr
)

// The example needs a server, so go test cannot run it by itself: this does.
func TestExample(t *testing.T) {
	exampleAddr = backends.SharedZooKeeper(t).Addr
	exampleStore = "zookeeper://" + exampleAddr + "?connect_timeout=20s" // a busy machine greets late
	testkit.Prints(t, "second: <nil>\nfirst is stale: true\n", Example)
}
