package redislock_test

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/redislock"
)

// The usual way: by URL. The package is imported for its schemes.
func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "redis://"+exampleAddr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Mutex("orders/42").Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held:", lease.Held(), "with a token:", lease.Token() > 0)
	fmt.Println(lease.Release(ctx))
	// Prints:
	// held: true with a token: true
	// <nil>
}

// With a client that the program already has, and locks that redsync and others share.
func ExampleOpen() {
	ctx := context.Background()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{exampleAddr}, DisableCache: true})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	b, err := redislock.New(client, &redislock.Options{Strategy: redislock.StrategySetNX})
	if err != nil {
		log.Fatal(err)
	}
	c, err := hasp.New(b)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.Do(ctx, "orders/42", func(context.Context) error {
		held, err := client.Do(ctx, client.B().Exists().Key("orders/42").Build()).AsInt64()
		fmt.Println("keys with that name:", held)
		return err
	})
	fmt.Println(err)
	// Prints:
	// keys with that name: 1
	// <nil>
}

// exampleAddr is that of a Redis. tests/examples starts one for TestExamples.
var exampleAddr = cmp.Or(os.Getenv("EXAMPLE_STORE"), "127.0.0.1:6379")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
	ExampleOpen()
}
