package recordedhold

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hasplock/hasp"
	"github.com/hasplock/hasp/internal/history"
)

// Workload is the work of clients while a test injects faults into their store: every client takes
// every lock, over and over.
type Workload struct {
	Clients []*hasp.Client
	Names   []string // of the locks
	TTL     time.Duration
	Rec     *history.Recorder
}

// Run goes on until ctx ends. Every fifth hold, the first among them, outlasts a TTL: it needs
// renewals, or is lost.
func (w *Workload) Run(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i, c := range w.Clients {
		for _, name := range w.Names {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					hold := rand.N(20 * time.Millisecond)
					if n%5 == 0 {
						hold = 3 * w.TTL / 2
					}
					h := Hold{Client: c, Who: fmt.Sprint("client ", i), Name: name, For: hold, TTL: w.TTL}
					if h.Run(ctx, w.Rec) != nil {
						time.Sleep(20 * time.Millisecond) // the store is away
					}
				}
			})
		}
	}
	return &wg
}

// Violated works until the check has seen that two held at once, or ctx ends: for controls, whose
// drivers let that happen.
func (w *Workload) Violated(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithCancel(ctx)
	workers := w.Run(ctx)
	defer workers.Wait()
	defer cancel()
	for ctx.Err() == nil {
		time.Sleep(w.TTL / 2)
		if h, err := w.Rec.History(); err != nil || len(history.Exclusion(h)) > 0 {
			return err == nil, err
		}
	}
	return false, nil
}
