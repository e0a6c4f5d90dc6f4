//go:build unix

package redisfence_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	_ "github.com/hasplock/hasp/redislock"
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

// exampleAddr is that of a Redis. tests/examples starts one for TestExamples.
var exampleAddr = cmp.Or(os.Getenv("EXAMPLE_STORE"), "127.0.0.1:6379")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
}
