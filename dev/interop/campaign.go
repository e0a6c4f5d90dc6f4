package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A campaign is hasp-torture on each of hasp's stores for long, in slices of a minute. The verdict
// of each is a file: a campaign that is broken off goes on with those that are missing.

// ordeal is one store of the campaign, as hasp-torture --local starts it.
type ordeal struct {
	name, local string
	ttl         time.Duration
	processes   int
	names       int
	interval    time.Duration // between faults of clients
}

// ordeals are chosen so that faults hit holders as often as the machine bears. What bounds them:
// half of the processes are disturbed at a time, each for about one and a half TTLs, so short TTLs
// and many processes make many. A name then stands still for a TTL, since those that wait for it
// are stopped as well: so many names make acquisitions.
var ordeals = []ordeal{
	{"redis", "redis", time.Second, 12, 24, 150 * time.Millisecond},
	{"redis setnx", "redis?strategy=setnx", time.Second, 12, 24, 150 * time.Millisecond},
	{"redlock, three servers", "redlock", time.Second, 12, 24, 150 * time.Millisecond},
	{"etcd", "etcd", 2 * time.Second, 12, 40, 150 * time.Millisecond},           // its floor
	{"zookeeper", "zookeeper", 2 * time.Second, 12, 40, 150 * time.Millisecond}, // a busy machine would end sessions of a second
	{"postgres table", "postgres", time.Second, 12, 24, 150 * time.Millisecond},
	{"mariadb table", "mariadb", time.Second, 8, 16, 200 * time.Millisecond},
	{"postgres advisory", "postgres?strategy=advisory", time.Second, 12, 12, 150 * time.Millisecond},
	{"mariadb getlock", "mariadb?strategy=getlock", time.Second, 8, 12, 200 * time.Millisecond},
	{"file", "file", time.Second, 12, 12, 150 * time.Millisecond},
}

// sliceTime is how long one slice disturbs; with its begin and end it takes a little longer.
const sliceTime = time.Minute

// slice is one run of the campaign.
type slice struct {
	ordeal
	number int // from 1; also the seed
}

// arguments are those of hasp. In every fourth slice the servers are disturbed as well: they are
// away for much of the time then, and nothing is acquired.
func (s slice) arguments() []string {
	args := []string{"--json", "--local", s.local, "--for", sliceTime.String(), "--seed", fmt.Sprint(s.number), "--ttl", s.ttl.String(),
		"--processes", fmt.Sprint(s.processes), "--names", fmt.Sprint(s.names), "--interval", s.interval.String()}
	if s.number%4 != 0 && s.local != "file" {
		args = append(args, "--faults", "pause,hold,ackloss,cut,kill")
	}
	return args
}

// done is a slice's file.
type done struct {
	Command string    `json:"command"`
	Verdict judgement `json:"verdict"`
}

func (s slice) path(dir string) string {
	plain := regexp.MustCompile(`[^a-z]+`).ReplaceAllString(s.name, "-")
	return filepath.Join(dir, fmt.Sprintf("%s-%04d.json", plain, s.number))
}

// load returns nil for a slice that is yet to be run, or was with other settings.
func (s slice) load(dir string) (*done, error) {
	text, err := os.ReadFile(s.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	d := &done{}
	if err == nil {
		err = json.Unmarshal(text, d)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.path(dir), err)
	}
	if d.Command != strings.Join(s.arguments(), " ") {
		return nil, nil
	}
	return d, nil
}

// run runs hasp, and keeps the verdict. An interrupt goes on to hasp, which cleans up.
func (s slice) run(ctx context.Context, hasp, dir string) (*done, error) {
	args := s.arguments()
	cmd := exec.CommandContext(ctx, hasp, args...)
	cmd.SysProcAttr = ownGroup()
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = time.Minute
	var said, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &words
	ended := cmd.Run() // 1 and 77 are answers, too
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	var whole json.RawMessage // all that it says is kept
	if err := json.Unmarshal(said.Bytes(), &whole); err != nil {
		return nil, fmt.Errorf("hasp %s: %v: %s", strings.Join(args, " "), ended, lastLine(words.String()))
	}
	text, err := json.Marshal(map[string]any{"command": strings.Join(args, " "), "verdict": whole})
	if err != nil {
		return nil, err
	}
	// Complete or not there: a campaign may end at any moment.
	part := s.path(dir) + ".part"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return nil, err
	}
	if err := os.Rename(part, s.path(dir)); err != nil {
		return nil, err
	}
	return s.load(dir)
}

// runCampaign runs what is missing of a campaign, and adds up all of it.
func runCampaign(args []string) error {
	flags := flag.NewFlagSet("campaign", flag.ContinueOnError)
	hasp := flags.String("torture", "", "the hasp that judges")
	duration := flags.Duration("for", 10*time.Minute, "how long for each store")
	dir := flags.String("dir", "", "where the verdicts are kept")
	only := flags.String("only", "", "the stores whose name matches this regular expression")
	parallel := flags.Int("parallel", 2, "how many stores at a time; 0: only add up")
	out := flags.String("out", "", "the file for the sums")
	page := flags.String("page", "", "the page whose table is written anew")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := regexp.Compile(*only)
	if err != nil || *hasp == "" || *dir == "" || *parallel < 0 {
		return errors.Join(err, errors.New("campaign needs -torture PROGRAM and -dir DIRECTORY"))
	}
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	var all []slice
	for n := range max(1, int(*duration/sliceTime)) {
		for _, o := range ordeals {
			if chosen.MatchString(o.name) {
				all = append(all, slice{o, n + 1})
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := &campaign{hasp: *hasp, dir: *dir, parallel: *parallel}
	var failed error
	if c.parallel > 0 {
		failed = c.run(ctx, all)
	}
	sums, err := add(*dir, all)
	if err != nil {
		return err
	}
	fmt.Print(sumsTable(sums))
	if *out != "" {
		text, err := json.MarshalIndent(sums, "", " ")
		if err == nil {
			err = os.WriteFile(*out, append(text, '\n'), 0o644)
		}
		if err != nil {
			return err
		}
	}
	if *page != "" {
		if err := putTable(*page, campaignMark, sumsTable(sums)); err != nil {
			return err
		}
	}
	for _, s := range sums {
		if len(s.Broken) > 0 {
			failed = errors.Join(failed, fmt.Errorf("%s: %s", s.Store, strings.Join(s.Broken, "; ")))
		}
	}
	return failed
}

type campaign struct {
	hasp, dir string
	parallel  int

	mu   sync.Mutex
	left int
	took time.Duration // of those that were run
	ran  int
}

// run runs the slices that are missing, a few at a time. One that could not be run is missing yet,
// and said.
func (c *campaign) run(ctx context.Context, all []slice) error {
	var missing []slice
	for _, s := range all {
		d, err := s.load(c.dir)
		if err != nil {
			return err
		}
		if d == nil {
			missing = append(missing, s)
		}
	}
	c.left = len(missing)
	fmt.Fprintf(os.Stderr, "campaign: %d of %d slices are there already, in %s\n", len(all)-len(missing), len(all), c.dir)
	next := make(chan slice)
	errs := make([]error, c.parallel)
	var workers sync.WaitGroup
	for i := range c.parallel {
		workers.Go(func() {
			for s := range next {
				errs[i] = errors.Join(errs[i], c.one(ctx, s))
			}
		})
	}
	for _, s := range missing {
		select {
		case next <- s:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return errors.New("broken off: the same command goes on with what is missing")
	}
	return errors.Join(errs...)
}

func (c *campaign) one(ctx context.Context, s slice) error {
	began := time.Now()
	d, err := s.run(ctx, c.hasp, c.dir)
	if ctx.Err() != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left--
	c.ran++
	c.took += time.Since(began)
	left := (c.took / time.Duration(c.ran) * time.Duration(c.left) / time.Duration(c.parallel)).Round(time.Second)
	if err != nil {
		fmt.Fprintf(os.Stderr, "campaign: %s, slice %d was not run: %v; %s left\n", s.name, s.number, err, left)
		return fmt.Errorf("%s, slice %d: %w", s.name, s.number, err)
	}
	v := d.Verdict
	fmt.Fprintf(os.Stderr, "campaign: %s, slice %d: %d acquisitions, %d hits, %s; %s left\n", s.name, s.number, v.Acquisitions, v.Hits,
		cmp.Or(v.BrokenWords, v.Result), left)
	return nil
}
