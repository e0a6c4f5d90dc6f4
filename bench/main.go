package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
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
	scenarioList := f.String("scenario", "all", "which scenarios, comma-separated; handoff is S3 and S6")
	reps := f.Int("runs", 3, "repetitions, at least 3")
	brief := f.Bool("brief", false, "a tenth of the time, to see that everything works; its figures mean nothing")
	dir := f.String("out", "", "directory for PERFORMANCE.md, and below it bench/ for figures and charts; the tables go to standard output anyway")
	figures := f.String("figures", "", "bench.json of an earlier run: write its page anew, and measure nothing")
	workerJob := f.String("worker", "", "for bench itself")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *workerJob != "" {
		return work(*workerJob)
	}
	if *figures != "" {
		return rewrite(*figures, *dir)
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is not understood: everything is a flag", f.Args())
	}
	if *reps < 3 && !*brief {
		return fmt.Errorf("-runs=%d: at least 3 tell whether they agree", *reps)
	}
	if *scenarioList == "handoff" {
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
	p := &plan{stores: chosenStores, scenarios: chosen, reps: *reps, brief: *brief, progress: os.Stderr}
	tables, err := p.run(ctx)
	if err != nil {
		return err
	}
	r := &report{Machine: machine(), When: today(), Reps: *reps, Tables: tables}
	r.markdown(os.Stdout, nil)
	if *dir == "" {
		return nil
	}
	return r.write(*dir)
}

// rewrite makes the page of an earlier run, in other words perhaps.
func rewrite(figures, dir string) error {
	if dir == "" {
		return errors.New("-figures needs -out")
	}
	text, err := os.ReadFile(figures)
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("%s: %w", figures, err)
	}
	return r.write(dir)
}

// write leaves the page, and in bench/ the figures and a chart for each store.
func (r *report) write(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "bench"), 0o755); err != nil {
		return err
	}
	var charts []string
	for i := 0; i < len(r.Tables); {
		j, timed := i, []table(nil)
		for ; j < len(r.Tables) && r.Tables[j].Store == r.Tables[i].Store; j++ {
			if t := r.Tables[j]; !t.Rates && t.Scenario != "S5" && t.Scenario != "growth" {
				timed = append(timed, t)
			}
		}
		if len(timed) > 0 {
			var b bytes.Buffer
			name := filepath.Join("bench", r.Tables[i].Store+".svg")
			chart(&b, r.Tables[i].Store, timed)
			if err := os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o644); err != nil {
				return err
			}
			charts = append(charts, name)
		}
		i = j
	}
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench", "bench.json"), text, 0o644); err != nil {
		return err
	}
	var page bytes.Buffer
	r.markdown(&page, charts)
	return os.WriteFile(filepath.Join(dir, "PERFORMANCE.md"), page.Bytes(), 0o644)
}
