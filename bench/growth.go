package main

import (
	"context"
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
	used, until := 0, m.grows(6*time.Second)
	for _, upTo := range []int{1, 1000, 10_000, 100_000, 1_000_000} {
		for used < upTo && time.Now().Before(until) { // a slow store does not get to the end
			batch := min(1000, upTo-used)
			if err := inParallel(batch, func(i int) error { return c.cycle(ctx, m.name("grown", used+i)) }); err != nil {
				return figures{Error: err.Error()}
			}
			used += batch
		}
		if used < upTo && used < 2*fig.Acquisitions {
			break // too little has come since the last look
		}
		look := alone(ctx, &match{store: m.store, endpoint: m.endpoint, who: m.who, rep: m.rep, brief: m.brief},
			func(i int) string { return m.name("grown", i%16) })
		if look.Error != "" {
			return look
		}
		fig.grown(used, look)
		if used < upTo {
			break
		}
	}
	return fig
}

// grown notes a look.
func (f *figures) grown(n int, look figures) {
	f.Steps = append(f.Steps, step{n, look.P50})
	f.Acquisitions, f.P50, f.P95, f.P99, f.Commands, f.CPU = n, look.P50, look.P95, look.P99, look.Commands, look.CPU
	f.Growth = look.P50 / f.Steps[0].P50
}
