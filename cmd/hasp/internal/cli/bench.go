package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hasplock/hasp"
	"github.com/spf13/cobra"
)

// benchFlags are those of the verb bench.
type benchFlags struct {
	storeFlags
	trust    trustFlags // only its TTL
	duration span
	clients  int
}

// mostBench bounds the goroutines. It so bounds the names that the store has to remember after a
// measurement, and the connections, where each held lock needs one.
const mostBench = 256

func (a *app) benchCommand() *cobra.Command {
	f := benchFlags{duration: span{d: 3 * time.Second, min: 1}}
	f.trust.ttl.min = 1
	c := &cobra.Command{
		Use:   "bench [flags]",
		Short: "measure how fast the store in use is from here",
		Long: `Measure three things, each for --duration, on names that no other client
uses:

  alone      one goroutine locks and unlocks a free name, again and again
  side by side
             --clients goroutines of one connection do, each on a separate name
  hand-over  two connections take turns on one name: the time from the call that
             releases until the waiter has the lock

and print for each the count, the rate per second, the percentiles 50, 95 and 99
of the time, to 2 %, and the longest time.

bench loads the store as fast as it can: do not do that lightly to a store in use.
It releases all its locks at the end, also after Ctrl-C. It uses one name for each
goroutine, and two more; the store remembers each as it does any name that was
used once. bench measures this machine, the network and the store together, at
this moment: it does not compare the result with what would be possible, or
with other libraries; make bench in hasp's repository does that.`,
		Example: "  hasp bench --store redis://10.0.0.1 --duration 10s --clients 32",
	}
	fs := c.Flags()
	f.add(fs, "as one JSON object, with all times in milliseconds")
	fs.Var(&f.trust.ttl, "ttl", "the TTL to ask for (default 10s)")
	fs.Var(&f.duration, "duration", "how long each of the three goes on")
	fs.IntVar(&f.clients, "clients", 8, fmt.Sprintf("how many goroutines lock side by side (`N`, up to %d)", mostBench))
	return a.verb(c, func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0:
			return usage("bench takes no arguments: %s", cmd.UseLine())
		case f.clients < 1 || f.clients > mostBench:
			return usage("--clients must be from 1 to %d, not %d", mostBench, f.clients)
		}
		return a.bench(&f)
	})
}

// benchReport is the output of bench with --json.
type benchReport struct {
	Store    string        `json:"store"`
	Version  string        `json:"version"` // of hasp
	Clients  int           `json:"clients"`
	Duration float64       `json:"duration_s"`
	Results  []benchResult `json:"results"`
}

type benchResult struct {
	What    string  `json:"what"`
	Count   uint64  `json:"count"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"per_second"`
	P50     float64 `json:"p50_ms"`
	P95     float64 `json:"p95_ms"`
	P99     float64 `json:"p99_ms"`
	Slowest float64 `json:"slowest_ms"`
}

func (a *app) bench(f *benchFlags) error {
	ctx, stop := interruptible()
	defer stop()
	b := &bencher{app: a, flags: f, names: "hasp-bench-" + strings.ToLower(rand.Text()) + "-", waiting: make(chan struct{}, 1)}
	for i := range b.clients {
		// bencher sees when an acquisition begins to wait: then the other has a waiter to release
		// to.
		c, err := a.open(ctx, &f.storeFlags, append(f.trust.options(), hasp.WithObserver(b))...)
		if err != nil {
			return err
		}
		defer c.Close()
		b.clients[i] = c
	}
	report, err := b.measure(ctx)
	if err == nil || errors.As(err, new(interrupted)) {
		err = cmp.Or(err, b.left()) // a store that does not answer is not asked again
	}
	if err != nil {
		return fail(interruption(ctx, err))
	}
	if f.json {
		return a.printJSON(report)
	}
	return a.print("%s", report.text())
}

// measure runs the parts. A short measurement prints nothing while it runs; a long one reports its
// progress now and then.
func (b *bencher) measure(ctx context.Context) (benchReport, error) {
	f := b.flags
	r := benchReport{
		Store: b.clients[0].Backend().String(), Version: thisVersion().Version,
		Clients: f.clients, Duration: f.duration.d.Seconds(),
	}
	for _, part := range []struct {
		what string
		run  func(context.Context, *latencies) error
	}{
		{"alone", b.alone},
		{"side by side", b.sideBySide},
		{"hand-over", b.handOver},
	} {
		result, err := b.part(ctx, part.what, part.run)
		if err != nil {
			return r, fmt.Errorf("%s: %w", part.what, within{err})
		}
		r.Results = append(r.Results, result)
	}
	return r, nil
}

// progressEvery is how often a long part says how far it is.
const progressEvery = 5 * time.Second

func (b *bencher) part(ctx context.Context, what string, run func(context.Context, *latencies) error) (benchResult, error) {
	// Wait for the last one, or a slow one that is cut off would not be counted. Do not wait for a
	// store that no longer answers.
	bounded, cancel := context.WithTimeout(ctx, b.flags.duration.d+answerBound)
	defer cancel()
	seen := &latencies{}
	began := time.Now()
	b.end = began.Add(b.flags.duration.d)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	done := make(chan error, 1)
	go func() { done <- run(bounded, seen) }()
	for {
		select {
		case err := <-done:
			switch {
			case err != nil || ctx.Err() != nil:
				return benchResult{}, interruption(ctx, err)
			case seen.n == 0:
				return benchResult{}, usage("none ended within --duration %s; give it more", b.flags.duration.d)
			}
			return seen.result(what), nil
		case <-ticker.C:
			if !b.flags.json {
				b.app.tell(fmt.Sprintf("%s: %s of %s, %d so far", what, brief(time.Since(began)), brief(b.flags.duration.d), seen.count()))
			}
		}
	}
}

func (r benchReport) text() string {
	t := newTable("", "COUNT", "PER SECOND", "P50", "P95", "P99", "SLOWEST")
	for _, x := range r.Results {
		ms := func(v float64) string { return fmt.Sprintf("%.3f ms", v) }
		t.row(x.What, fmt.Sprint(x.Count), fmt.Sprintf("%.0f", x.Rate), ms(x.P50), ms(x.P95), ms(x.P99), ms(x.Slowest))
	}
	return fmt.Sprintf("store  %s\neach for %gs; side by side are %d goroutines\n\n%s", r.Store, r.Duration, r.Clients, t)
}
