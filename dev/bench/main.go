package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	f := flag.NewFlagSet("bench", flag.ExitOnError)
	storeList := f.String("store", "all", "which stores, comma-separated")
	scenarioList := f.String("scenario", "all", "which scenarios, comma-separated; handover is S3 and S6")
	reps := f.Int("runs", 3, "repetitions, at least 3")
	brief := f.Bool("brief", false, "a tenth of the time, to see that everything works; its figures mean nothing")
	long := f.Bool("long", false, "growth goes to its end on slow stores, too: a million names take minutes")
	dir := f.String("out", "", "the repository whose docs/PERFORMANCE.md and dev/bench/RESULTS.md are written; the tables go to standard output anyway")
	figures := f.String("figures", "", "results.json of an earlier run: its pages are written again, with the new tables in place of the old; -runs=0 measures nothing")
	workerJob := f.String("worker", "", "for bench itself")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *workerJob != "" {
		return work(*workerJob)
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is not understood: everything is a flag", f.Args())
	}
	r, err := earlier(*figures)
	if err != nil {
		return err
	}
	if r != nil && *reps == 0 {
		return r.give(*dir)
	}
	if *reps < 3 && !*brief {
		return fmt.Errorf("-runs=%d: at least 3 tell whether they agree", *reps)
	}
	if *scenarioList == "handover" {
		*scenarioList = "S3-8,S3-64,S3-512,S6"
	}
	chosenStores, err := pick(*storeList, stores, func(s store) string { return s.name })
	if err != nil {
		return err
	}
	chosen, err := pick(*scenarioList, scenarios, func(s scenario) string { return s.name })
	if err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	p := &plan{stores: chosenStores, scenarios: chosen, reps: *reps, brief: *brief, long: *long, progress: os.Stderr}
	tables, err := p.run(ctx)
	if err != nil { // what was measured until then is not lost, but no page is written of it
		if len(tables) > 0 {
			(&report{Machine: machine(), When: today(), Reps: *reps, Tables: tables}).results(os.Stdout)
		}
		return err
	}
	if r == nil {
		r = &report{Machine: machine(), When: today(), Reps: *reps, Tables: tables}
	} else {
		r.replace(tables)
	}
	return r.give(*dir)
}

// give prints the tables, and writes the pages if a repository is named.
func (r *report) give(dir string) error {
	r.results(os.Stdout)
	if dir == "" {
		return nil
	}
	return r.write(dir)
}
