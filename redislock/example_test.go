package redislock_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
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

// exampleAddr is a server's address; TestExamples puts its own there.
var exampleAddr = "127.0.0.1:6379"

// The examples need a server, so go test cannot run them by itself: this does.
func TestExamples(t *testing.T) {
	exampleAddr = backends.SharedRedis(t).Addr
	testkit.Prints(t, "held: true with a token: true\n<nil>", Example)
	testkit.Prints(t, "keys with that name: 1\n<nil>", ExampleOpen)
}
