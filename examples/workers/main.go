// Command workers is a pool of workers that is spread over machines, with no more than n jobs at
// once on all of them together: what a licence or another service's limit asks for.
//
//	go run ./workers -permits 3 & go run ./workers -permits 3 & wait
//
// Each job holds one permit of a semaphore. Permits are served in order, and come back when a
// process dies: after the TTL, on one machine's files at once. All must agree on -permits; one
// that asks with another number is refused (hasp.ErrMismatch) while others are at work.
//
// A permit can be lost like any lease. The job is told by its context and must stop, since the
// permit goes to the next after a safety margin.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/examples/internal/store"
)

var (
	permits = flag.Int64("permits", 2, "jobs at once, on all machines together")
	workers = flag.Int("workers", 4, "workers of this process")
	jobs    = flag.Int("jobs", 8, "jobs of this process")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	store.Exit(run(ctx))
}

func run(ctx context.Context) error {
	c, err := store.Open(ctx)
	if err != nil {
		return err
	}
	defer c.Close()

	permit := c.Semaphore("workers", *permits)
	queue := make(chan int)
	go func() {
		defer close(queue)
		for job := range *jobs {
			select {
			case queue <- job:
			case <-ctx.Done():
				return
			}
		}
	}()
	errs := make([]error, *workers)
	var wg sync.WaitGroup
	for i := range *workers {
		wg.Go(func() {
			for job := range queue {
				// when there is a permit for it; the context ends when that is lost, or when we are told to stop
				err := hasp.Do(ctx, permit.Locker(1), func(ctx context.Context) error { return do(ctx, job) })
				errs[i] = errors.Join(errs[i], err)
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// do is the work. It stops when ctx ends.
func do(ctx context.Context, job int) error {
	fmt.Printf("begin %d of pid %d\n", job, os.Getpid())
	defer fmt.Printf("end %d of pid %d\n", job, os.Getpid())
	return context.Cause(ctx)
}
