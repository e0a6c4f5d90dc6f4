package goredis_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/hasplock/hasp/fencing"
	"github.com/hasplock/hasp/redislock/redisfence"
)

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

// A fence of package redisfence with a client of go-redis: one method.
func Example_fence() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: exampleAddr})
	defer client.Close()
	w, err := redisfence.With(ctx, goRedis{client}, fencing.GrantOf("orders/43", 88), nil)
	if err != nil {
		log.Fatal(err)
	}
	results, err := w.Do(ctx, redisfence.Command{"SET", "{orders%2f43}:state", "paid"}, redisfence.Command{"GET", "{orders%2f43}:state"})
	fmt.Println(results, err)
	_, err = redisfence.With(ctx, goRedis{client}, fencing.GrantOf("orders/43", 87), nil)
	fmt.Println(errors.Is(err, fencing.ErrStale))
	// Prints:
	// [OK paid] <nil>
	// true
}

// exampleAddr is that of a Redis. tests/examples starts one for TestExamples.
var exampleAddr = cmp.Or(os.Getenv("EXAMPLE_STORE"), "127.0.0.1:6379")

// Examples cannot be skipped where there is no server, tests can; hence no "Output:" above.
func TestExamples(t *testing.T) {
	if os.Getenv("EXAMPLE_STORE") == "" {
		t.Skip("tests/examples runs it")
	}
	Example_fence()
}
