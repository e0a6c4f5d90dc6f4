// Package retry spaces the tries of a fence's operation that may collide with others, for those who
// write a fence for another resource.
package retry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/hasplock/hasp/fencing"
)

// Tries is how often an operation is tried unless its caller says otherwise. With the waits below
// they take about half a second in all: longer than a burst of writers, shorter than a person or a
// request should wait without a message.
const Tries = 10

const (
	firstWait = 2 * time.Millisecond
	mostWait  = 128 * time.Millisecond
)

// Do runs op until it returns again == false, or tries times, or until ctx ends. A try that returns
// again was certainly not applied. After the last try, the result wraps fencing.ErrConflict and the
// last error.
//
// The waits grow, so that many writers spread out, and are drawn from the upper half of the bound,
// so that two that collided do not collide again at the same instant.
func Do(ctx context.Context, tries int, op func() (again bool, err error)) error {
	for i, wait := 1, firstWait; ; i, wait = i+1, min(2*wait, mostWait) {
		again, err := op()
		if !again {
			return ended(ctx, err)
		}
		if i >= tries {
			return fmt.Errorf("%w: gave up after %d tries, nothing was written: %w", fencing.ErrConflict, i, err)
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
	}
}

// ended adds the context's error if a client library has replaced it by another error.
func ended(ctx context.Context, err error) error {
	if over := ctx.Err(); err != nil && over != nil && !errors.Is(err, over) {
		return errors.Join(over, err)
	}
	return err
}
