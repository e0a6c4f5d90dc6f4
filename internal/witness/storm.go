package witness

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/history"
)

// Storm is what clients do while a test does harm to their store: every client takes every
// lock, over and over.
type Storm struct {
	Clients []*hasp.Client
	Names   []string // of the locks
	TTL     time.Duration
	Rec     *history.Recorder
}

// Work goes on until ctx ends. Every fifth hold, the first among them, outlasts a TTL: it needs
// renewals, or is lost.
func (s *Storm) Work(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i, c := range s.Clients {
		for _, name := range s.Names {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					hold := rand.N(20 * time.Millisecond)
					if n%5 == 0 {
						hold = 3 * s.TTL / 2
					}
					turn := Turn{Client: c, Who: fmt.Sprint("client ", i), Name: name, Hold: hold, TTL: s.TTL}
					if turn.Take(ctx, s.Rec) != nil {
						time.Sleep(20 * time.Millisecond) // the store is away
					}
				}
			})
		}
	}
	return &wg
}

// Caught works until the judge has seen that two held at once, or ctx ends: for controls, whose
// drivers let that happen.
func (s *Storm) Caught(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	workers := s.Work(ctx)
	defer workers.Wait()
	defer cancel()
	for ctx.Err() == nil {
		time.Sleep(s.TTL / 2)
		if h, err := s.Rec.History(); err != nil || len(history.Exclusion(h)) > 0 {
			return err == nil, err
		}
	}
	return false, nil
}
