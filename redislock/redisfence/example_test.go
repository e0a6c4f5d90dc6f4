//go:build unix

package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/redisfence"
)

// Two holders, one after the other; the first one's late write is refused.
func Example() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{exampleAddr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	c, err := hasp.Open(ctx, "redis://"+exampleAddr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	take := func() *redisfence.Writer {
		lease, err := c.Mutex("orders/42").Lock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Unlock()
		w, err := redisfence.With(ctx, redisfence.Rueidis(client), lease, nil)
		if err != nil {
			log.Fatal(err)
		}
		return w
	}
	first, second := take(), take()
	_, err = second.Do(ctx, redisfence.Command{"SET", "{orders%2f42}:state", "paid"})
	fmt.Println("second:", err)
	_, err = first.Do(ctx, redisfence.Command{"SET", "{orders%2f42}:state", "cancelled"})
	fmt.Println("first is stale:", errors.Is(err, fencing.ErrStale))
	// Prints:
	// second: <nil>
	// first is stale: true
}

// exampleAddr is a server's address; TestExamples puts its own there.
var exampleAddr = "127.0.0.1:6379"

// The examples need a server, so go test cannot run them by itself: this does.
func TestExamples(t *testing.T) {
	exampleAddr = backends.SharedRedis(t).Addr
	testkit.Prints(t, "second: <nil>\nfirst is stale: true\n", Example)
}
