package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
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
	dir := f.String("out", "", "directory for PERFORMANCE.md, and below it bench/ for figures and charts; the tables go to standard output anyway")
	figures := f.String("figures", "", "bench.json of an earlier run, whose page is written anew: what is measured now takes its place there; with -runs=0 nothing is")
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
	if err != nil {
		return err
	}
	if r == nil {
		r = &report{Machine: machine(), When: today(), Reps: *reps, Tables: tables}
	} else {
		r.replace(tables)
	}
	return r.give(*dir)
}

// give prints the page, and leaves it in a directory if there is one to be.
func (r *report) give(dir string) error {
	r.markdown(os.Stdout, nil)
	if dir == "" {
		return nil
	}
	return r.write(dir)
}

// earlier reads the figures of an earlier run, if there is to be one.
func earlier(file string) (*report, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &report{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// replace puts tables that were measured again in the place of those of the run.
func (r *report) replace(tables []table) {
	for _, t := range tables {
		t.Again = today()
		at := len(r.Tables)
		for i, old := range r.Tables {
			if old.Store == t.Store {
				at = i + 1 // a store's tables stand together
			}
		}
		if i := slices.IndexFunc(r.Tables, func(old table) bool { return old.Store == t.Store && old.Scenario == t.Scenario }); i >= 0 {
			r.Tables[i] = t
		} else {
			r.Tables = slices.Insert(r.Tables, at, t)
		}
	}
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
			if t := r.Tables[j]; !t.Rates && !ofOursAlone(t.Scenario) {
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
