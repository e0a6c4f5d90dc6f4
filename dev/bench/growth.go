package main

import (
	"context"
	"errors"
	"time"
)

// manyNames uses more and more names, and then looks at what a cycle costs.
func manyNames(ctx context.Context, m *match) (fig figures) {
	if m.who.role != ours {
		return fig
	}
	c, err := m.who.open(ctx)
	if err != nil {
		return figures{Error: err.Error()}
	}
	defer c.close()
	err = fig.climb(m.grows(6*time.Second), []int{1, 1000, 10_000, 100_000, 1_000_000}, func(used, upTo int) (int, error) {
		more := min(1000, upTo-used)
		return more, inParallel(more, func(i int) error { return c.cycle(ctx, m.name("grown", used+i)) })
	}, func() figures {
		return alone(ctx, &match{store: m.store, endpoint: m.endpoint, who: m.who, rep: m.rep, brief: m.brief},
			func(i int) string { return m.name("grown", i%16) })
	})
	if err != nil {
		return figures{Error: err.Error()}
	}
	return fig
}

// climb looks after each of the steps that is reached until the time is over, and where it is
// over if there are at least twice as many by then as at the last look. add adds some on the
// way from n to a step, and says how many.
func (f *figures) climb(until time.Time, steps []int, add func(n, upTo int) (int, error), look func() figures) error {
	n := 0
	for _, upTo := range steps {
		for n < upTo && time.Now().Before(until) { // a slow store does not get to the end
			more, err := add(n, upTo)
			if err != nil {
				return err
			}
			n += more
		}
		if n < upTo && n < 2*f.Acquisitions {
			return nil
		}
		seen := look()
		if seen.Error != "" {
			return errors.New(seen.Error)
		}
		f.grown(n, seen)
		if n < upTo {
			return nil
		}
	}
	return nil
}

// grown notes a look.
func (f *figures) grown(n int, look figures) {
	f.Steps = append(f.Steps, step{n, look.P50})
	f.Acquisitions, f.P50, f.P95, f.P99, f.Commands, f.CPU = n, look.P50, look.P95, look.P99, look.Commands, look.CPU
	f.Growth = look.P50 / f.Steps[0].P50
}
