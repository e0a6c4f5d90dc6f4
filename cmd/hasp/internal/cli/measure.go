package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/hasplock/hasp"
)

// bencher measures with two connections to one store.
type bencher struct {
	app     *app
	flags   *benchFlags
	names   string // the prefix of all names that are used
	clients [2]*hasp.Client
	end     time.Time     // of the running part: nothing begins after it
	waiting chan struct{} // receives when an acquisition has to wait; a value that is not received yet stays
}

// Observe is called when an acquisition begins to wait.
func (b *bencher) Observe(e hasp.Event) {
	if e.Kind == hasp.EventWaiting {
		select {
		case b.waiting <- struct{}{}:
		default:
		}
	}
}

// cycles locks and unlocks one name until the end of the part. The first time does not count:
// it opens the session, which a program does once. When ctx ends, Release goes on in the
// background, and left waits for that.
func (b *bencher) cycles(ctx context.Context, name string, seen *latencies) error {
	m := b.clients[0].Mutex(name)
	for first := true; first || time.Now().Before(b.end); first = false {
		began := time.Now()
		l, err := m.Lock(ctx)
		if err != nil {
			return err
		}
		if err := l.Release(ctx); err != nil {
			return err
		}
		if !first {
			seen.add(began, time.Now())
		}
	}
	return nil
}

func (b *bencher) alone(ctx context.Context, seen *latencies) error {
	return b.cycles(ctx, b.names+"alone", seen)
}

func (b *bencher) sideBySide(ctx context.Context, seen *latencies) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range b.flags.clients {
		wg.Go(func() {
			if err := b.cycles(ctx, b.names+strconv.Itoa(i), seen); err != nil {
				cancel(err) // the first error ends the others, whose error is then this one
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// handOver makes the two connections take turns. The holder releases only when the other has begun
// to wait; otherwise this would measure two locks and no hand-over. The first turn does not count,
// as in cycles.
func (b *bencher) handOver(ctx context.Context, seen *latencies) error {
	name := b.names + "turns"
	held, err := b.clients[0].Mutex(name).Lock(ctx)
	for turn := 1; err == nil && (turn <= 2 || time.Now().Before(b.end)); turn++ {
		counted := seen
		if turn == 1 {
			counted = &latencies{}
		}
		held, err = b.turn(ctx, held, b.clients[turn%2].Mutex(name), counted)
	}
	if held != nil {
		err = cmp.Or(err, held.Release(ctx))
	}
	return err
}

type grant struct {
	lease *hasp.Lease
	at    time.Time
	err   error
}

// turn hands the lock over to next and returns its lease, or after an error the lease that is still
// held.
func (b *bencher) turn(ctx context.Context, held *hasp.Lease, next *hasp.Mutex, seen *latencies) (*hasp.Lease, error) {
	select {
	case <-b.waiting: // of an earlier part, or of a waiter that had to queue again
	default:
	}
	got := make(chan grant, 1)
	go func() {
		l, err := next.Lock(ctx)
		got <- grant{l, time.Now(), err}
	}()
	select {
	case <-b.waiting:
	case g := <-got: // an error, or our lease was lost
		if g.err == nil {
			g.err = cmp.Or(held.Err(), errors.New("it was granted beside another"))
			held = g.lease
		}
		return held, g.err
	}
	began := time.Now()
	err := held.Release(ctx)
	g := <-got
	if err = cmp.Or(err, g.err); err == nil {
		seen.add(began, g.at)
	}
	return g.lease, err
}

// left waits until the store has none of our entries any more: an interrupted acquisition is
// released in the background.
func (b *bencher) left() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerBound)
	defer cancel()
	names := []string{b.names + "alone", b.names + "turns"}
	for i := range b.flags.clients {
		names = append(names, b.names+strconv.Itoa(i))
	}
	for _, name := range names {
		for {
			q, err := b.clients[0].Inspect(ctx, name)
			if err != nil {
				return fmt.Errorf("it is not known whether %q was given back: %w", name, within{err})
			}
			if len(q.Holders)+len(q.Waiters) == 0 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// latencies counts durations in classes, each 2 % wider than the one before: a few KB however
// long it is measured. Safe for use by many goroutines.
type latencies struct {
	mu      sync.Mutex
	n       uint64
	from    time.Time // when the first began
	to      time.Time // when the last ended
	slowest time.Duration
	classes [2048]uint64 // up to 1.02^2047 ns, years
}

const classWidth = 1.02

func (s *latencies) add(began, ended time.Time) {
	d := ended.Sub(began)
	i := int(math.Log(float64(max(d, 1))) / math.Log(classWidth))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n++; s.n == 1 || began.Before(s.from) {
		s.from = began
	}
	if ended.After(s.to) {
		s.to = ended
	}
	s.slowest = max(s.slowest, d)
	s.classes[min(i, len(s.classes)-1)]++
}

func (s *latencies) count() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

// quantile returns a duration that the share p of all did not exceed.
func (s *latencies) quantile(p float64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	want, seen := uint64(math.Ceil(p*float64(s.n))), uint64(0)
	for i, n := range s.classes {
		if seen += n; seen >= want {
			return min(time.Duration(math.Pow(classWidth, float64(i+1))), s.slowest)
		}
	}
	return s.slowest
}

// result is for when all is measured.
func (s *latencies) result(what string) benchResult {
	seconds := s.to.Sub(s.from).Seconds()
	return benchResult{
		What: what, Count: s.n, Seconds: seconds, Rate: float64(s.n) / seconds,
		P50: millis(s.quantile(.5)), P95: millis(s.quantile(.95)), P99: millis(s.quantile(.99)), Slowest: millis(s.slowest),
	}
}
