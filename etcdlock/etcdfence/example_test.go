//go:build unix

package etcdfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/etcdlock/etcdfence"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
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

// exampleAddr is a server's address; TestExample puts its own there.
var exampleAddr = "127.0.0.1:2379"

// The example needs a server, so go test cannot run it by itself: this does.
func TestExample(t *testing.T) {
	exampleAddr = backends.SharedEtcd(t).Addr
	testkit.Prints(t, "second: <nil>\nfirst is stale: true\n", Example)
}
