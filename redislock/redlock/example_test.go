package redlock_test

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"testing"

	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/redislock/redlock"
)

// The usual way: by URL. The package is imported for its schemes.
func Example() {
	ctx := context.Background()
	c, err := hasp.Open(ctx, "redlock://"+exampleAddrs)
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
	for _, addr := range strings.Split(exampleAddrs, ",") {
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

// exampleAddrs are those of five servers. tests/examples starts some for TestExamples.
var exampleAddrs = cmp.Or(os.Getenv("EXAMPLE_STORE"), "h1:6379,h2:6379,h3:6379,h4:6379,h5:6379")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example()
	ExampleOpen()
}
