//go:build unix

package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/fencing/redisfence"
	"github.com/hasplock/hasp/internal/backends"
	"github.com/hasplock/hasp/internal/testkit"
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
		defer lease.Release(ctx)
		w, err := redisfence.Advance(ctx, redisfence.Rueidis(client), lease.Name(), lease.Token(), nil)
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

// goRedis is a redisfence.Client of a go-redis client.
type goRedis struct{ client redis.UniversalClient }

// once is a command that go-redis must not repeat when an answer is lost.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (c goRedis) Eval(ctx context.Context, script string, keys, args []string) (any, error) {
	cmd := []any{"EVAL", script, len(keys)}
	for _, word := range append(keys, args...) {
		cmd = append(cmd, word)
	}
	eval := once{redis.NewCmd(ctx, cmd...)}
	eval.SetFirstKeyPos(3)
	_ = c.client.Process(ctx, eval) // the same error as below
	answer, err := eval.Result()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	return answer, err
}

// With a client of go-redis: one method.
func ExampleClient() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: exampleAddr})
	defer client.Close()
	w, err := redisfence.Advance(ctx, goRedis{client}, "orders/43", 88, nil)
	if err != nil {
		log.Fatal(err)
	}
	results, err := w.Do(ctx, redisfence.Command{"SET", "{orders%2f43}:state", "paid"}, redisfence.Command{"GET", "{orders%2f43}:state"})
	fmt.Println(results, err)
	_, err = redisfence.Advance(ctx, goRedis{client}, "orders/43", 87, nil)
	fmt.Println(errors.Is(err, fencing.ErrStale))
	// Prints:
	// [OK paid] <nil>
	// true
}

// exampleAddr is a server's address; TestExamples puts its own there.
var exampleAddr = "127.0.0.1:6379"

// The examples need a server, so go test cannot run them by itself: this does.
func TestExamples(t *testing.T) {
	exampleAddr = backends.SharedRedis(t).Addr
	testkit.Prints(t, "second: <nil>\nfirst is stale: true\n", Example)
	testkit.Prints(t, "[OK paid] <nil>\ntrue\n", ExampleClient)
}
