package redlock_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
	"github.com/hasplock/hasp/redislock/redlock"
)

// The usual way: by URL. The package is imported for its schemes.
func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "redlock://"+strings.Join(exampleAddrs, ","))
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
	// held: true with a token: false
	// <nil>
}

// With clients that the program has already, one for each server.
func ExampleOpen() {
	ctx := context.Background()
	var clients []rueidis.Client
	for _, addr := range exampleAddrs {
		c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	b, err := redlock.New(ctx, clients, nil)
	if err != nil {
		log.Fatal(err)
	}
	c, err := hasp.New(b)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	err = c.Do(ctx, "orders/42", func(context.Context) error {
		held := 0
		for _, client := range clients {
			n, err := client.Do(ctx, client.B().Exists().Key("orders/42").Build()).AsInt64()
			if err != nil {
				return err
			}
			held += int(n)
		}
		fmt.Println("on a majority:", held >= 3)
		return nil
	})
	fmt.Println(err)
	// Prints:
	// on a majority: true
	// <nil>
}

// exampleAddrs are the servers; TestExamples puts its own there.
var exampleAddrs = []string{"h1:6379", "h2:6379", "h3:6379", "h4:6379", "h5:6379"}

// The examples need servers, so go test cannot run them by itself: this does.
func TestExamples(t *testing.T) {
	exampleAddrs = nil
	for _, n := range backends.SharedRedisNodes(t) {
		exampleAddrs = append(exampleAddrs, n.Addr)
	}
	testkit.Prints(t, "held: true with a token: false\n<nil>", Example)
	testkit.Prints(t, "on a majority: true\n<nil>", ExampleOpen)
}
